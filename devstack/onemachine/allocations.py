# SPDX-License-Identifier: Apache-2.0
"""What is wrong between Nova and Placement; 0 is wanted.

``heal_allocations --dry-run`` ends with "nothing to do" and says "Processed 0"
whatever it found; what it would do stands in its lines.
``nova-manage placement audit`` looks at allocations of VCPU, MEMORY_MB and the
like alone, never at a custom class, which is all that bare metal has. So the
databases are asked as well.
"""

import re

from onemachine.backends import sql
from onemachine.layout import Layout
from onemachine.packages import run

_PROCESSED = re.compile(r'Processed (\d+) ')
_WOULD_HEAL = re.compile(r'^\[dry-run\] ', re.MULTILINE)
# The exit statuses of "something was found" and of "nothing to do".
_ORPHANS, _NOTHING_TO_HEAL = 3, 4


def amiss(layout: Layout) -> dict[str, int]:
    """Return everything that is looked for, with how often it was found."""
    return {
        'allocations that nova-manage finds orphaned': orphans(layout),
        'servers that nova-manage would heal': unallocated(layout),
        'allocations that no server has': strays(layout),
        'active servers without an allocation': bare(layout),
    }


def processed(output: str) -> int:
    """Return how many things nova-manage says it has come upon."""
    hit = _PROCESSED.search(output)
    return int(hit[1]) if hit else 0


def would_heal(output: str) -> int:
    """Return how many things a dry run of nova-manage would do."""
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
