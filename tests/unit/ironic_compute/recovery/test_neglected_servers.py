# SPDX-License-Identifier: Apache-2.0
"""Which servers are looked at, and what is done for a neglected one."""

import datetime
import types
from typing import Any

import pytest
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states

from hashring.ring import Host
from ironic_compute.recovery import neglected_servers
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.recovery.neglected_servers import NeglectedServers
from tests.fakes.clock import ManualClock

objects.register_all()

_HOUR_S = 3600.0


class _Server(types.SimpleNamespace):
    """A server's record, which another save may change."""

    def refresh(self) -> None:
        pass

    def save(self, expected_task_state: list[str | None]) -> None:
        if self.is_taken:
            raise nova_exception.UnexpectedTaskStateError(
                instance_uuid=self.uuid, expected=None, actual='rebooting'
            )
        self.saved.append((self.task_state, expected_task_state))


class _Cloud:
    """Nova, Placement and Neutron, as far as this module reads them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.servers: list[_Server] = []
        self.actions: list[str] = []
        self.events: list[Any] = []
        self.nodes: list[Any] = ['n1']
        self.has_ports = True
        self.reads: list[str] = []
        self.in_progress = InProgress()
        monkeypatch.setattr(
            objects.InstanceList, 'get_by_filters', self._list_servers
        )
        monkeypatch.setattr(
            objects.InstanceActionList, 'get_by_instance_uuid', self._actions
        )
        monkeypatch.setattr(objects.Instance, 'get_by_uuid', self._server)
        monkeypatch.setattr(
            objects.InstanceActionEventList, 'get_by_action', self._events
        )

    def neglected(self, *, deletes_softly: bool = False) -> NeglectedServers:
        return NeglectedServers(
            Host('c1'),
            self._allocations,  # type: ignore[arg-type]
            self._ports,
            self.in_progress,
            self.clock,
            deletes_softly,
            begin=lambda name, act: act(),
        )

    def add(self, ago_s: float = 60.0, **fields: Any) -> _Server:
        """Add a server that has changed so many seconds ago."""
        changed_at = datetime.datetime.fromtimestamp(
            self.clock.wall_s() - ago_s, datetime.UTC
        )
        server = _Server(
            **{
                'uuid': f's{len(self.servers):04}',
                'host': 'c1',
                'vm_state': vm_states.ACTIVE,
                'task_state': None,
                'updated_at': changed_at,
                'launched_at': None,
                'saved': [],
                'is_taken': False,
                **fields,
            }
        )
        self.servers.append(server)
        return server

    def _list_servers(
        self, context: Any, filters: Any, **options: Any
    ) -> list[_Server]:
        assert filters == {
            'host': 'c1',
            'deleted': False,
            'task_state': None,
        }
        self.reads.append('servers')
        marker = options['marker']
        if marker and marker not in [s.uuid for s in self.servers]:
            raise nova_exception.MarkerNotFound(marker=marker)
        found = [s for s in self.servers if not marker or s.uuid > marker]
        return found[: options['limit']]

    def _server(self, context: Any, uuid: str, **options: Any) -> _Server:
        for server in self.servers:
            if server.uuid == uuid:
                return server
        raise nova_exception.InstanceNotFound(instance_id=uuid)

    def _actions(self, context: Any, uuid: str, limit: int) -> list[Any]:
        self.reads.append(f'actions of {uuid}')
        return [types.SimpleNamespace(id=1, action=a) for a in self.actions]

    def _events(self, context: Any, action_id: int) -> list[Any]:
        self.reads.append('events')
        return [types.SimpleNamespace(finish_time=t) for t in self.events]

    def _allocations(self, context: Any, uuid: str) -> list[Any]:
        self.reads.append(f'allocations of {uuid}')
        return self.nodes

    def _ports(self, instance: Any) -> bool:
        self.reads.append(f'ports of {instance.uuid}')
        return bool(self.has_ports)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> _Cloud:
    return _Cloud(monkeypatch)


@pytest.mark.parametrize(
    ('deletes_softly', 'is_forced', 'task'),
    [
        (False, False, task_states.DELETING),
        (True, False, task_states.SOFT_DELETING),
        (True, True, task_states.DELETING),
    ],
)
def test_accepted_delete_gets_its_task_back(
    deletes_softly: bool, is_forced: bool, task: str, cloud: _Cloud
) -> None:
    """The task is restored only if the server has got no other one."""
    cloud.actions = ['delete', 'create']
    now = datetime.datetime.now(datetime.UTC)
    server = cloud.add(deleted_at=None if is_forced else now)
    cloud.neglected(deletes_softly=deletes_softly).check()
    assert server.saved == [(task, [None])]


def test_delete_that_has_ended_is_not_done_again(cloud: _Cloud) -> None:
    """It has failed, and its user has seen it."""
    cloud.actions, cloud.events = ['delete', 'create'], ['ended']
    server = cloud.add()
    cloud.neglected().check()
    assert 'events' in cloud.reads
    assert not server.saved


@pytest.mark.parametrize(
    'fields', [{'task_state': 'rebooting'}, {'host': 'c2'}]
)
def test_server_that_has_changed_since_the_list_is_left_alone(
    fields: dict[str, Any], cloud: _Cloud
) -> None:
    """It has another task, or another host."""
    cloud.actions = ['delete', 'create']
    server = cloud.add(**fields)
    cloud.neglected().check()
    assert not server.saved


def test_server_with_a_new_task_keeps_it(
    cloud: _Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    """The save is refused, and nothing is logged as done."""
    cloud.actions = ['delete', 'create']
    cloud.add(is_taken=True)
    cloud.neglected().check()
    assert not caplog.messages


def test_server_that_a_thread_works_on_is_left_alone(cloud: _Cloud) -> None:
    """The delete may be waiting for the server's lock."""
    cloud.actions = ['delete', 'create']
    server = cloud.add()
    with cloud.in_progress.shared(server.uuid):
        cloud.neglected().check()
    assert not server.saved


def test_only_changed_servers_are_looked_at_and_not_for_ever(
    cloud: _Cloud,
) -> None:
    """An idle host costs one read; a change costs two reads of actions."""
    cloud.actions = ['create']
    cloud.add(ago_s=48 * _HOUR_S)
    cloud.add(ago_s=2 * _HOUR_S)
    neglected = cloud.neglected()
    for _ in range(4):
        neglected.check()
        cloud.clock.advance(0.5 * _HOUR_S)
    assert cloud.reads == [
        'servers',
        'actions of s0001',
        *['servers'] * 3,
    ]


def test_many_servers_are_read_in_parts(cloud: _Cloud) -> None:
    """Each check reads one part; a deleted marker begins anew."""
    size = neglected_servers._SERVERS_PER_CHECK
    for _ in range(size):
        cloud.add(ago_s=48 * _HOUR_S)
    last = [cloud.add().uuid, cloud.add().uuid]
    neglected = cloud.neglected()
    neglected.check()
    assert cloud.reads == ['servers']
    cloud.reads.clear()
    neglected.check()
    assert cloud.reads == ['servers', *(f'actions of {u}' for u in last)]
    neglected.check()
    del cloud.servers[size - 1]
    neglected.check()
    assert neglected._marker is None


@pytest.mark.parametrize(
    ('lost', 'sentence'),
    [('nodes', 'no allocation of it'), ('has_ports', 'none of its ports')],
)
def test_new_server_that_lacks_something_is_named_once(
    lost: str,
    sentence: str,
    cloud: _Cloud,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not changed: its owner may be using it."""
    cloud.actions = ['create']
    setattr(cloud, lost, [])
    server = cloud.add()
    server.launched_at = server.updated_at
    neglected = cloud.neglected()
    for _ in range(2):
        neglected.check()
    (message,) = caplog.messages
    assert sentence in message
    assert not server.saved


def test_read_that_fails_changes_nothing(
    cloud: _Cloud,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the list of servers nor their actions."""

    def fail(*args: Any, **options: Any) -> Any:
        raise nova_exception.NovaException('no database')

    cloud.actions = ['delete', 'create']
    server = cloud.add()
    neglected = cloud.neglected()
    with monkeypatch.context() as broken:
        broken.setattr(objects.InstanceActionEventList, 'get_by_action', fail)
        neglected.check()
        broken.setattr(objects.InstanceList, 'get_by_filters', fail)
        neglected.check()
    assert not server.saved
    assert 'which may be neglected' in caplog.text
    assert 'Could not search for neglected servers' in caplog.text


def test_check_that_could_not_be_made_is_made_the_next_time(
    cloud: _Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole cloud was off for the night, so nobody changes the server."""

    def fail(*args: Any, **options: Any) -> Any:
        raise nova_exception.NovaException('no database')

    cloud.actions = ['delete', 'create']
    failed, busy = (cloud.add(ago_s=10 * _HOUR_S) for _ in range(2))
    neglected = cloud.neglected()
    with monkeypatch.context() as broken, cloud.in_progress.shared(busy.uuid):
        broken.setattr(objects.InstanceActionEventList, 'get_by_action', fail)
        neglected.check()
    neglected.check()
    done = [(task_states.DELETING, [None])]
    assert (failed.saved, busy.saved) == (done, done)
    assert not neglected._unchecked


def test_requested_server_is_checked_whenever_it_changed(
    cloud: _Cloud,
) -> None:
    """One that is gone stops no other."""
    cloud.actions = ['delete', 'create']
    old = cloud.add(ago_s=48 * _HOUR_S)
    elsewhere = cloud.add(ago_s=48 * _HOUR_S, host='c2')
    cloud.neglected().check()
    assert not old.saved
    cloud.neglected().recheck(['gone', elsewhere.uuid, old.uuid])
    assert old.saved == [(task_states.DELETING, [None])]
    assert not elsewhere.saved
