# SPDX-License-Identifier: Apache-2.0
"""Servers on our nodes that Nova has not here: what is left of their claim."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ironic_compute import errors
from ironic_compute.nodes.records import ServerRow
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.recovery.stray_instances import FreeNode, StrayInstances
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import ServerRecord
from tests.unit.ironic_compute.hosts import Cloud, One

NODE, SERVER = NodeId('node-0'), 'server'


class _NobodyElse:
    """Nobody is at work on any server."""

    @contextlib.contextmanager
    def exclusive(self, server: str) -> Iterator[bool]:
        """Say so."""
        yield True


def _strays(one: One, free_node: FreeNode, **others: Any) -> StrayInstances:
    """What looks after the servers on a host's nodes, and acts at once."""
    arguments = {
        'free_node': free_node,
        'give_to': one.rebalancer.follow_instance,
        'in_progress': _NobodyElse(),
        'begin': lambda name, act: act(),
        **others,
    }
    return StrayInstances(one.held_nodes, one.rows, **arguments)  # type: ignore[arg-type]


def _built_and_deleted() -> tuple[Cloud, One]:
    """A server whose build failed after its claim, and that was deleted."""
    cloud = Cloud([NODE])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    one.claims.claim(NODE, SERVER)
    cloud.nodes[NODE] = NodeFacts(NODE, instance_uuid=SERVER)
    one.held_nodes.accept_facts(cloud.nodes[NODE])
    cloud.nova.servers[SERVER] = ServerRecord(
        SERVER, 0.0, 'error', None, one.host, NODE, deleted=True
    )
    return cloud, one


def test_claim_ends_though_we_are_told_that_freeing_failed() -> None:
    """Ironic frees the node all the same; nobody looks at it again then."""
    cloud, one = _built_and_deleted()

    def free(node: NodeId, server: str) -> None:
        cloud.nodes[node] = dataclasses.replace(
            cloud.nodes[node], instance_uuid=None
        )
        raise errors.IronicUnavailable('no answer')

    strays = _strays(one, free)
    strays.check()
    one.held_nodes.accept_facts(cloud.nodes[NODE])
    strays.check()
    assert one.held_nodes.is_free(NODE)


@pytest.mark.parametrize('is_at_work', [False, True])
def test_claim_that_nobody_works_on_ends(*, is_at_work: bool) -> None:
    """Its build failed late, and whoever deleted it did not know the node."""
    cloud, one = _built_and_deleted()
    cloud.nodes[NODE] = NodeFacts(NODE)
    one.held_nodes.accept_facts(cloud.nodes[NODE])
    in_progress = InProgress()
    work = (
        in_progress.shared(SERVER) if is_at_work else contextlib.nullcontext()
    )
    with work:
        _strays(one, pytest.fail, in_progress=in_progress).check()
    assert one.held_nodes.is_free(NODE) is not is_at_work


def test_claim_of_a_push_is_left_to_it() -> None:
    """It is no server's, and ends by itself."""
    _, one = _built_and_deleted()
    one.claims.release(NODE, SERVER)
    one.held_nodes.accept_facts(NodeFacts(NODE))
    with one.held_nodes.locked_free_row(NODE):
        _strays(one, pytest.fail).check()
        assert not one.held_nodes.is_free(NODE)


def test_a_node_that_cannot_follow_does_not_stop_the_others() -> None:
    """Nova does not answer about the first; the second is freed."""
    nodes = [NodeId('node-0'), NodeId('node-1')]
    cloud = Cloud(nodes)
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    for node, deleted in zip(nodes, (False, True), strict=True):
        cloud.nodes[node] = NodeFacts(node, instance_uuid=f'on {node}')
        one.held_nodes.accept_facts(cloud.nodes[node])
        cloud.nova.servers[f'on {node}'] = ServerRecord(
            f'on {node}', 0.0, 'active', None, 'c2', node, deleted=deleted
        )
    freed: list[NodeId] = []
    strays = _strays(
        one, lambda node, server: freed.append(node), give_to=_Broken().follow
    )
    strays.check()
    assert freed == nodes[1:]


def test_of_many_servers_only_those_that_are_not_at_home_are_read() -> None:
    """The names of the others are enough; one that is not there is nothing."""
    nodes = [NodeId(f'node-{number:03}') for number in range(300)]
    cloud = Cloud(nodes)
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    for node in nodes:
        cloud.nodes[node] = NodeFacts(node, instance_uuid=f'on {node}')
        one.held_nodes.accept_facts(cloud.nodes[node])
        cloud.nova.servers[f'on {node}'] = ServerRecord(
            f'on {node}', 0.0, 'active', None, one.host, node
        )
    cloud.nova.servers['on node-007'].deleted = True
    asked: list[list[str]] = []
    servers = one.rows.read_servers

    def ask(uuids: Iterable[str]) -> dict[str, ServerRow]:
        asked.append(sorted(uuids))
        return servers(asked[-1])

    one.rows.read_servers = ask  # type: ignore[method-assign]
    freed: list[NodeId] = []
    strays = _strays(one, lambda node, server: freed.append(node))
    strays.check()
    assert asked == [['on node-007']]
    assert freed == [NodeId('node-007')]
    strays.check()
    assert asked == [['on node-007']] * 2


def test_a_node_whose_server_is_gone_does_not_follow_it() -> None:
    """The build was sent to another node since Nova was asked."""
    cloud = Cloud([NODE])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid='moved'))
    cloud.nova.servers['moved'] = ServerRecord(
        'moved', 0.0, 'building', None, 'c2', NODE
    )

    def begin_late(name: str, act: Callable[[], None]) -> None:
        one.held_nodes.accept_facts(cloud.nodes[NODE])
        act()

    followed = _Noted()
    strays = _strays(
        one,
        lambda node, server: None,
        give_to=followed.follow,
        begin=begin_late,
    )
    strays.check()
    assert followed.nodes == []
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid='moved'))
    strays._begin_thread = lambda name, act: act()
    strays.check()
    assert followed.nodes == [NODE]


class _Noted:
    """A handover that notes what follows."""

    def __init__(self) -> None:
        self.nodes: list[NodeId] = []

    def follow(self, node: NodeId, host: str) -> None:
        """Note a node."""
        self.nodes.append(node)


class _Broken:
    """A handover that Nova does not answer."""

    def follow(self, node: NodeId, host: str) -> None:
        """Say so."""
        raise TimeoutError


@pytest.mark.parametrize(
    ('action', 'is_freed', 'is_told'),
    [
        ('reap', True, False),
        ('log', False, True),
        ('shutdown', False, True),
        ('noop', False, False),
    ],
)
def test_deleted_server_is_reaped_only_if_the_operator_wants_it(
    action: str,
    is_freed: bool,
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nova's own option says what happens to it, and it is said once."""
    _, one = _built_and_deleted()
    freed = []
    strays = _strays(
        one, lambda node, server: freed.append(node), deleted_action=action
    )
    strays.check()
    assert (NODE in freed) is is_freed
    assert ('which Nova has deleted' in caplog.text) is is_told
    caplog.clear()
    strays.check()
    assert 'which Nova has deleted' not in caplog.text


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'is_freed'),
    [
        ('error', None, True),
        ('shelved_offloaded', None, True),
        # Its new build may be on its way to this very node.
        ('shelved_offloaded', 'unshelving', False),
        ('shelved_offloaded', 'spawning', False),
        ('building', 'scheduling', False),
    ],
)
def test_node_that_was_left_with_a_server_is_freed(
    vm_state: str, task_state: str | None, *, is_freed: bool
) -> None:
    """Nova has the server nowhere; seen twice, for it may go on."""
    cloud = Cloud([NODE])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid=SERVER))
    cloud.nova.servers[SERVER] = ServerRecord(
        SERVER, 0.0, vm_state, task_state
    )
    freed: list[NodeId] = []
    strays = _strays(one, lambda node, server: freed.append(node))
    strays.check()
    assert freed == []
    strays.check()
    assert freed == [NODE] * is_freed
