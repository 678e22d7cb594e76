# SPDX-License-Identifier: Apache-2.0
"""Names of agent groups: one group for each conductor group and shard.

The agent joins the group of its pool and refuses to start beside a group
whose pool overlaps; ``ironic-computectl`` prints the names. Pure.
"""

import urllib.parse
from collections.abc import Sequence

_PREFIX = 'ironic-compute'

# No conductor group and no shard, quoted, can be called that.
_ANY = '*'


def group_name(conductor_group: str | None, shard: str | None) -> str:
    """Name the group of the agents that share a pool of nodes.

    :param conductor_group: ``[ironic] conductor_group``; None, unlike '',
        is that of all nodes
    :param shard: ``[ironic] shard``; likewise
    """
    # Ironic heeds no case in the names of conductor groups.
    group = None if conductor_group is None else conductor_group.lower()
    return '/'.join((_PREFIX, _part(group), _part(shard)))


def _part(name: str | None) -> str:
    return _ANY if name is None else urllib.parse.quote(name, safe='')


def find_overlap(mine: str, other: str) -> str | None:
    """Say why two pools cannot live side by side; None if they can.

    Both would hold the nodes that both have.

    :param mine: what ``group_name`` made of our options
    :param other: what it made of those of others
    """
    prefix, *theirs = other.split('/')
    ours = mine.split('/')[1:]
    pairs = tuple(zip(ours, theirs, strict=False))
    if prefix != _PREFIX or len(pairs) != len(ours):
        return None  # None of ours.
    if not all(_ANY in pair or pair[0] == pair[1] for pair in pairs):
        return None
    return (
        f'The nodes of this daemon ({_told(ours)}) are, all or some, those of '
        f'others that are up ({_told(theirs)}): set [ironic] conductor_group '
        f'and shard so that each node is in one pool'
    )


def describe_pool(group: str) -> str:
    """Say which nodes a group is for.

    :param group: what :func:`group_name` made of the options
    """
    return _told(group.split('/')[1:])


def _told(parts: Sequence[str]) -> str:
    names = ('conductor_group', 'shard')
    return ', '.join(
        f'{name} {"not set" if part == _ANY else part or "empty"}'
        for name, part in zip(names, parts, strict=True)
    )
