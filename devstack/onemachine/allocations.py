# SPDX-License-Identifier: Apache-2.0
"""Counts the inconsistencies between Nova and Placement; 0 is wanted.

``heal_allocations --dry-run`` ends with "nothing to do" and prints "Processed
0" in any case; its proposals are in the lines before.
``nova-manage placement audit`` checks only allocations of VCPU, MEMORY_MB and
similar classes, never of a custom class, which bare metal has. Therefore the
databases are read as well.
"""

import re

from onemachine.backends import sql
from onemachine.layout import Layout
from onemachine.packages import run

_PROCESSED = re.compile(r'Processed (\d+) ')
_WOULD_HEAL = re.compile(r'^\[dry-run\] ', re.MULTILINE)
# The exit statuses for "something was found" and for "nothing to do".
_ORPHANS, _NOTHING_TO_HEAL = 3, 4


def inconsistencies(layout: Layout) -> dict[str, int]:
    """Return each kind of inconsistency, with its number."""
    return {
        'allocations that nova-manage finds orphaned': orphans(layout),
        'servers that nova-manage would heal': unallocated(layout),
        'allocations that no server has': strays(layout),
        'active servers without an allocation': bare(layout),
    }


def processed(output: str) -> int:
    """Return the number that nova-manage prints as processed."""
    hit = _PROCESSED.search(output)
    return int(hit[1]) if hit else 0


def would_heal(output: str) -> int:
    """Return how many changes a dry run of nova-manage lists."""
    return len(_WOULD_HEAL.findall(output))


def orphans(layout: Layout) -> int:
    """Return how many allocations belong to no server."""
    return processed(
        _nova_manage(layout, 'audit', '--verbose', good=(0, _ORPHANS))
    )


def unallocated(layout: Layout) -> int:
    """Return how many servers lack their allocation."""
    words = ('heal_allocations', '--dry-run', '--verbose')
    good = (0, _NOTHING_TO_HEAL)
    return would_heal(_nova_manage(layout, *words, good=good))


def strays(layout: Layout) -> int:
    """Return how many allocations no server of Nova has, by SQL."""
    return int(
        sql(
            layout,
            'SELECT COUNT(*) FROM placement.allocations WHERE consumer_id '
            'NOT IN (SELECT uuid FROM nova.instances WHERE deleted = 0);',
        )
    )


def bare(layout: Layout) -> int:
    """Return how many ACTIVE servers have no allocation, by SQL."""
    return int(
        sql(
            layout,
            'SELECT COUNT(*) FROM nova.instances WHERE deleted = 0 AND '
            "vm_state = 'active' AND uuid NOT IN "
            '(SELECT consumer_id FROM placement.allocations);',
        )
    )


def _nova_manage(layout: Layout, *words: str, good: tuple[int, ...]) -> str:
    conf = str(layout.conf('nova'))
    command = [layout.bin('nova-manage'), '--config-file', conf]
    return run(layout, [*command, 'placement', *words], good)
