# SPDX-License-Identifier: Apache-2.0
"""The nodes of a pool: those of one conductor group and one shard. Pure."""

import dataclasses

from resource_tracker.node import NodeFacts


@dataclasses.dataclass(frozen=True, slots=True)
class NodePool:
    """The nodes that a pool has in Ironic.

    :param conductor_group: ``[ironic] conductor_group``; None: of any group
    :param shard: ``[ironic] shard``; None: of any shard, or of none
    """

    conductor_group: str | None = None
    shard: str | None = None

    def contains(self, facts: NodeFacts) -> bool:
        """Return whether a node has this conductor group and shard.

        The case of letters does not matter: Ironic lists the nodes of shard
        Rack1 if it is asked for those of rack1, because it makes the name in
        the request lower-case, and MySQL ignores the case.

        A node with a parent, such as a smart NIC, is in no pool: Ironic's list
        of a pool leaves it out, and Nova's own driver never had one.
        """
        if facts.parent_node is not None:
            return False
        is_of_shard = self.shard is None or (
            facts.shard is not None
            and facts.shard.lower() == self.shard.lower()
        )
        return is_of_shard and self.may_contain(facts.conductor_group)

    def may_contain(self, conductor_group: str) -> bool:
        """Return whether a node with a conductor group may be of the pool.

        The case of letters does not matter, as in Ironic.
        """
        ours = self.conductor_group
        return ours is None or conductor_group.lower() == ours.lower()


def why_not_in_pool(
    ours: NodePool, facts: NodeFacts, other: NodePool | None
) -> str | None:
    """Return why a node may not go to a host of a pool, or None.

    :param ours: the pool of this host
    :param other: the pool of the other host; None: this pool, too
    """
    node = facts.uuid
    if other is None and not ours.contains(facts):
        return (
            f'Node {node} has left this pool (conductor group, shard or '
            f'parent node); it cannot be moved within this pool'
        )
    if other is not None and ours.contains(facts):
        return f'Node {node} is in this pool (conductor group and shard)'
    if other is not None and not other.contains(facts):
        return (
            f'Node {node} is not in the pool that asks for it (conductor '
            f'group or shard)'
        )
    return None
