# SPDX-License-Identifier: Apache-2.0
"""Stray instances are freed, transferred or left alone."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.nodes.records import ServerRow
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.recovery.stray_instances import FreeNode, StrayInstances
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import ServerRecord
from tests.unit.ironic_compute.hosts import Cloud, One

NODE, SERVER = NodeId('node-0'), 'server'


class _NothingInProgress:
    """No thread works on any server."""

    @contextlib.contextmanager
    def exclusive(
        self, server: str, *, despite_messages: bool = False
    ) -> Iterator[bool]:
        """Yield True."""
        yield True


def _strays(one: One, free_node: FreeNode, **others: Any) -> StrayInstances:
    """Return the StrayInstances of a host, run without threads."""
    arguments = {
        'free_node': free_node,
        'give_to': one.rebalancer.follow_instance,
        'restore_host': pytest.fail,
        'in_progress': _NothingInProgress(),
        'begin': lambda name, act: act(),
        **others,
    }
    return StrayInstances(one.held_nodes, one.rows, **arguments)  # type: ignore[arg-type]


def _built_and_deleted() -> tuple[Cloud, One]:
    """Return a cloud with a server that failed after its claim, deleted."""
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


def test_claim_is_released_although_freeing_the_node_fails() -> None:
    """A claim is released before its node is freed.

    Ironic may free the node although the request fails, and then no later
    round would release the claim.
    """
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
def test_claim_without_a_thread_is_released(*, is_at_work: bool) -> None:
    """A claim of a server that no thread works on is released."""
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


def test_claim_of_a_push_is_kept() -> None:
    """The claim of a push is kept, because it ends by itself."""
    _, one = _built_and_deleted()
    one.claims.release(NODE, SERVER)
    one.held_nodes.accept_facts(NodeFacts(NODE))
    with one.held_nodes.locked_free_row(NODE):
        _strays(one, pytest.fail).check()
        assert not one.held_nodes.is_free(NODE)


def test_server_of_an_unfinished_move_is_checked_in_the_next_round() -> None:
    """It was found here before, so else only the next audit would look."""
    cloud = Cloud([NODE])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    cloud.nodes[NODE] = NodeFacts(NODE, instance_uuid=SERVER)
    one.held_nodes.accept_facts(cloud.nodes[NODE])
    record = ServerRecord(SERVER, 0.0, 'active', None, one.host, NODE)
    cloud.nova.servers[SERVER] = record
    given: list[Any] = []
    strays = _strays(
        one, pytest.fail, give_to=lambda node, host: given.append(host)
    )
    strays.check()
    record.host = Host('c2')
    strays.check()
    assert not given
    strays.recheck(NODE, SERVER)
    strays.check()
    assert given == ['c2']


def test_a_failed_transfer_does_not_delay_other_nodes() -> None:
    """If the transfer of a node fails, another node is freed as well."""
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
        one,
        lambda node, server: freed.append(node),
        give_to=_BrokenTransfers().follow,
    )
    strays.check()
    assert freed == nodes[1:]


def test_of_many_servers_only_rows_on_other_hosts_are_read() -> None:
    """Of 300 servers, only the row that is not on this host is read."""
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
    reads: list[list[str]] = []
    servers = one.rows.read_servers

    def read(uuids: Iterable[str]) -> dict[str, ServerRow]:
        reads.append(sorted(uuids))
        return servers(reads[-1])

    one.rows.read_servers = read  # type: ignore[method-assign]
    freed: list[NodeId] = []
    strays = _strays(one, lambda node, server: freed.append(node))
    strays.check()
    assert reads == [['on node-007']]
    assert freed == [NodeId('node-007')]
    strays.check()
    assert reads == [['on node-007']] * 2


def test_a_node_without_its_server_is_not_transferred() -> None:
    """A node whose server has left it since the read is not transferred."""
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

    followed = _RecordedTransfers()
    strays = _strays(
        one,
        lambda node, server: None,
        give_to=followed.follow,
        begin=begin_late,
    )
    strays.check()
    assert followed.nodes == []
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid='moved'))
    strays._begin = lambda name, act: act()
    strays.check()
    assert followed.nodes == [NODE]


@pytest.mark.parametrize(
    ('server', 'is_busy', 'given'),
    [(SERVER, False, [NODE]), ('another', False, []), (SERVER, True, [])],
)
def test_node_follows_its_own_server_at_rest(
    server: str, is_busy: bool, given: list[NodeId]
) -> None:
    """Not another server, and not while a thread works on the server."""
    cloud = Cloud([NODE])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid=SERVER))
    followed, in_progress = _RecordedTransfers(), InProgress()
    strays = _strays(
        one,
        lambda node, server: None,
        give_to=followed.follow,
        in_progress=in_progress,
    )
    work = in_progress.shared(server) if is_busy else contextlib.nullcontext()
    with work:
        strays.follow_server(NODE, server, Host('c2'))
    assert followed.nodes == given


@pytest.mark.parametrize(
    ('error', 'count', 'later_count'),
    [
        (errors.TeardownFailed('the BMC is dead'), 3, 4),
        (errors.IronicRefused('the node is protected'), 3, 4),
        (errors.WaitTimeout('it is still deleting'), 3, 4),
        (errors.IronicNotReached('connection refused'), 60, 120),
    ],
)
def test_node_that_ironic_cannot_free_is_not_locked_each_minute(
    error: Exception,
    count: int,
    later_count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A machine may be broken for months; each audit tries once."""
    _, one = _built_and_deleted()
    tries: list[NodeId] = []

    def free(node: NodeId, server: str) -> None:
        tries.append(node)
        raise error

    strays = _strays(one, free)
    for expected in (count, later_count):
        strays.forget_checked()
        for _ in range(60):
            strays.check()
        assert len(tries) == expected
    assert 'Traceback' not in caplog.text
    assert caplog.text.count(str(error)) == later_count


class _RecordedTransfers:
    """Records the nodes that are transferred."""

    def __init__(self) -> None:
        self.nodes: list[NodeId] = []

    def follow(self, node: NodeId, host: str) -> None:
        """Record a node."""
        self.nodes.append(node)


class _BrokenTransfers:
    """A transfer that always times out."""

    def follow(self, node: NodeId, host: str) -> None:
        """Raise a timeout."""
        raise TimeoutError


@pytest.mark.parametrize(
    ('action', 'is_freed', 'is_logged'),
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
    is_logged: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """``running_deleted_instance_action`` decides; a warning comes once."""
    _, one = _built_and_deleted()
    freed = []
    strays = _strays(
        one, lambda node, server: freed.append(node), deleted_action=action
    )
    strays.check()
    assert (NODE in freed) is is_freed
    assert ('which Nova has deleted' in caplog.text) is is_logged
    caplog.clear()
    strays.check()
    assert 'which Nova has deleted' not in caplog.text


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'is_freed'),
    [
        ('error', None, True),
        ('shelved_offloaded', None, True),
        # The message of the unshelve may be on its way to this host.
        ('shelved_offloaded', 'unshelving', False),
        ('shelved_offloaded', 'spawning', False),
        ('building', 'scheduling', False),
    ],
)
def test_node_of_a_failed_build_is_freed(
    vm_state: str, task_state: str | None, *, is_freed: bool
) -> None:
    """The node of a server without a host is freed in the second round."""
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


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'deleted', 'is_restored'),
    [
        ('active', None, False, True),
        ('stopped', None, False, True),
        # The user has requested a delete since; it needs the host.
        ('active', 'deleting', False, True),
        ('active', None, True, False),
        ('building', None, False, False),
        ('shelved_offloaded', 'spawning', False, False),
    ],
)
def test_host_of_a_server_in_use_is_restored(
    vm_state: str, task_state: str | None, *, deleted: bool, is_restored: bool
) -> None:
    """A late save of an earlier request has taken it from the server."""
    cloud = Cloud([NODE])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid=SERVER))
    cloud.nova.servers[SERVER] = ServerRecord(
        SERVER, 0.0, vm_state, task_state, deleted=deleted
    )
    restored: list[tuple[NodeId, str]] = []
    strays = _strays(
        one,
        lambda *key: None,
        restore_host=lambda *key: restored.append(key),
    )
    strays.check()
    assert restored == [(NODE, SERVER)] * is_restored


def test_host_is_not_restored_while_a_thread_works_on_the_server() -> None:
    """The thread may be about to save another state of the server."""
    cloud = Cloud([NODE])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid=SERVER))
    cloud.nova.servers[SERVER] = ServerRecord(SERVER, 0.0, 'active', None)
    in_progress = InProgress()
    with in_progress.shared(SERVER):
        _strays(one, pytest.fail, in_progress=in_progress).check()


def test_node_follows_its_server_although_a_message_is_handled() -> None:
    """The thread with the message has the node follow before it forwards."""
    cloud = Cloud([NODE])
    one, other = cloud.add('c1'), cloud.add('c2')
    cloud.show('c1', 'c2')
    cloud.settle()
    holder, target = (
        (one, other) if NODE in one.held_nodes.rows() else (other, one)
    )
    holder.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid=SERVER))
    in_progress = InProgress()
    strays = _strays(holder, pytest.fail, in_progress=in_progress)
    with in_progress.with_message(SERVER):
        strays.follow_server(NODE, SERVER, target.host)
    assert NODE not in holder.held_nodes.rows()


@pytest.mark.parametrize(
    ('fields', 'foreign'),
    [
        (None, SERVER),
        ({'vm_state': 'building', 'task_state': 'scheduling'}, None),
        ({'vm_state': 'building', 'task_state': None}, None),
        ({'vm_state': 'error', 'deleted': True}, None),
        ({'vm_state': 'active', 'host': 'c9'}, None),
    ],
)
def test_server_is_foreign_only_if_nova_never_had_it(
    fields: dict[str, Any] | None, foreign: str | None
) -> None:
    """Nova has the record of a server before its build begins."""
    cloud = Cloud([NODE])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid=SERVER))
    if fields is not None:
        cloud.nova.servers[SERVER] = ServerRecord(SERVER, 0.0, **fields)
    _strays(one, lambda node, instance_uuid: None).check()
    assert one.held_nodes.foreign_server(NODE) == foreign
    one.held_nodes.drop_node(NODE)
    assert one.held_nodes.foreign_server(NODE) is None


def test_server_is_not_foreign_because_nova_does_not_answer() -> None:
    """An error says nothing about the server."""
    cloud = Cloud([NODE])
    one: Any = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    one.held_nodes.accept_facts(NodeFacts(NODE, instance_uuid=SERVER))
    one.rows.read_servers = _unanswered
    with pytest.raises(errors.IronicUnavailable):
        _strays(one, pytest.fail).check()
    assert one.held_nodes.foreign_server(NODE) is None


def _unanswered(uuids: Any) -> Any:
    raise errors.IronicUnavailable('no answer')
