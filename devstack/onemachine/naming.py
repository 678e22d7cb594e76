# SPDX-License-Identifier: Apache-2.0
"""Names of new nodes and servers."""

import itertools
import time
from collections.abc import Collection


def node_name(number: int) -> str:
    """Return the name of a node; sorted names are in numeric order."""
    return f'node-{number:05d}'


def free_numbers(names: Collection[str], count: int) -> list[int]:
    """Return the lowest numbers that no node has in its name."""
    free = (i for i in itertools.count() if node_name(i) not in names)
    return list(itertools.islice(free, count))


def server_names(what: str) -> list[str]:
    """Return names for new servers: the given name, or numbered ones."""
    if not what.isdecimal():
        return [what]
    stamp = int(time.time()) % 100000
    return [f'server-{stamp:05d}-{i}' for i in range(int(what))]
