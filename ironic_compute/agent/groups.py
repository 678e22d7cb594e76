# SPDX-License-Identifier: Apache-2.0
"""Names of agent groups: one group for each conductor group and shard.

The agent joins the group of its pool and refuses to start beside a group
whose pool overlaps; ``ironic-computectl`` prints the names. Pure.
"""

import urllib.parse
from collections.abc import Sequence

POOL_OPTIONS = ('conductor_group', 'shard')
"""The options of ``[ironic]`` that define a pool."""

_PREFIX = 'ironic-compute'

# Stands for all conductor groups, or all shards. No quoted name can be equal
# to it.
_ANY = '*'


def group_name(conductor_group: str | None, shard: str | None) -> str:
    """Return the name of the group of agents that share a pool.

    :param conductor_group: ``[ironic] conductor_group``; None means all
        nodes, '' the nodes without a conductor group
    :param shard: ``[ironic] shard``; None means all nodes
    """
    # Ironic ignores case in the names of conductor groups.
    group = None if conductor_group is None else conductor_group.lower()
    return '/'.join((_PREFIX, _part(group), _part(shard)))


def _part(name: str | None) -> str:
    return _ANY if name is None else urllib.parse.quote(name, safe='')


def find_overlap(mine: str, other: str) -> str | None:
    """Return a sentence if two pools share nodes, else None.

    Both pools would hold the nodes that they share. The case of letters does
    not matter: Ironic takes names that differ only in case for one.

    :param mine: the name of this agent's group
    :param other: the name of another group
    """
    prefix, *theirs = other.split('/')
    ours = mine.split('/')[1:]
    pairs = tuple(zip(ours, theirs, strict=False))
    if prefix != _PREFIX or len(pairs) != len(ours):
        return None  # Not a group of this project.
    if not all(_ANY in p or p[0].lower() == p[1].lower() for p in pairs):
        return None
    return (
        f'The nodes of this daemon ({_describe(ours)}) are, all or some, '
        f'those of others that are up ({_describe(theirs)}): set [ironic] '
        f'conductor_group and shard so that each node is in one pool'
    )


def pool_options(group: str) -> tuple[str, str]:
    """Return the conductor group and the shard of a pool, for the operator.

    :param group: a name made by :func:`group_name`
    """
    conductor_group, shard = map(_shown, group.split('/')[1:])
    return conductor_group, shard


def _shown(part: str) -> str:
    if part == _ANY:
        return 'not set'
    return urllib.parse.unquote(part) or 'empty'


def describe_pool(group: str) -> str:
    """Return a description of a group's pool for the operator.

    :param group: a name made by :func:`group_name`
    """
    return _describe(group.split('/')[1:])


def _describe(parts: Sequence[str]) -> str:
    return ', '.join(
        f'{name} {_shown(part)}'
        for name, part in zip(POOL_OPTIONS, parts, strict=True)
    )
