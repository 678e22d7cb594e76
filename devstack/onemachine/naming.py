# SPDX-License-Identifier: Apache-2.0
"""What new nodes and servers are called; pure but for the clock."""

import itertools
import time
from collections.abc import Collection


def node_name(number: int) -> str:
    """Return the name of a node; sorted, the numbers are in order."""
    return f'node-{number:05d}'


def free_numbers(names: Collection[str], count: int) -> list[int]:
    """Return the lowest numbers that none of these nodes has as its name."""
    free = (i for i in itertools.count() if node_name(i) not in names)
    return list(itertools.islice(free, count))


def server_names(what: str) -> list[str]:
    """Return names for servers: so many new ones, or the one given."""
    if not what.isdecimal():
        return [what]
    stamp = int(time.time()) % 100000
    return [f'server-{stamp:05d}-{i}' for i in range(int(what))]
