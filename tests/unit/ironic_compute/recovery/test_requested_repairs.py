# SPDX-License-Identifier: Apache-2.0
"""What a worker mends at an operator's request, and what it leaves alone."""

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nova import exception as nova_exception
from nova import objects

from ironic_compute import errors
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.recovery.requested_repairs import RequestedRepairs
from resource_tracker.node import NodeId
from tests.fakes.ironic import NODE, FakeIronic

objects.register_all()

OTHER, SERVER, CLASS = 'other-node', 'server', 'CUSTOM_GOLD'


class _Answer:
    """An answer of Placement, as keystoneauth1 returns it."""

    def __init__(self, body: Any = None, *, is_good: bool = True) -> None:
        self._body, self._is_good, self.text = body, is_good, 'conflict'

    def json(self) -> Any:
        return self._body

    def __bool__(self) -> bool:
        return self._is_good


class _Placement:
    """Nova's client of a Placement with allocations, by consumer."""

    def __init__(self) -> None:
        self.allocations: dict[str, set[str]] = {}
        self.sent: list[Any] = []
        self.accepts = True

    def get_allocations_for_resource_provider(
        self, context: Any, provider: str
    ) -> Any:
        found = {c: {} for c, on in self.allocations.items() if provider in on}
        return types.SimpleNamespace(allocations=found)

    def get_allocs_for_consumer(self, context: Any, consumer: str) -> Any:
        on = self.allocations.get(consumer, set())
        return {'allocations': dict.fromkeys(on), 'consumer_generation': 3}

    def delete_allocation_for_instance(self, context: Any, uuid: str) -> None:
        self.sent.append(('delete', uuid))
        del self.allocations[uuid]

    def get(self, url: str) -> _Answer:
        assert url == f'/resource_providers/{NODE}/inventories'
        inventory = {'total': 1, 'reserved': 1}
        return _Answer(
            {
                'inventories': {CLASS: inventory},
                'resource_provider_generation': 7,
            }
        )

    def post(self, url: str, body: Any, version: str) -> _Answer:
        self.sent.append((url, body))
        return _Answer(is_good=self.accepts)


class _Cloud:
    """One host that holds a node, with Nova, Ironic and Placement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ironic, self.placement = FakeIronic(), _Placement()
        self.ironic.add(power_state='power off')
        self.servers: dict[str, Any] = {}
        self.is_free = True
        self.audits: list[str] = []
        self.rechecked: list[str] = []
        self.in_progress = InProgress()
        monkeypatch.setattr(objects.Instance, 'get_by_uuid', self._server)

    def _server(self, context: Any, uuid: str, expected_attrs: Any) -> Any:
        server = self.servers.get(uuid)
        is_hidden = server and server.deleted and context.read_deleted == 'no'
        if server is None or is_hidden:
            raise nova_exception.InstanceNotFound(instance_id=uuid)
        return server

    def add_server(self, **fields: Any) -> None:
        """Add the server to Nova; it is on the node unless told."""
        values = {
            'uuid': SERVER,
            'deleted': False,
            'host': 'c1',
            'node': NODE,
            'vm_state': 'active',
            'task_state': None,
            'project_id': 'p',
            'user_id': 'u',
        }
        self.servers[SERVER] = types.SimpleNamespace(**{**values, **fields})

    def deploy(self) -> None:
        """Put the server on the node."""
        self.add_server()
        self.ironic.change(
            NODE, instance_uuid=SERVER, provision_state='active'
        )

    @contextlib.contextmanager
    def locked_free_row(self, node: NodeId) -> Iterator[Any]:
        yield self.row(node) if self.is_free else None

    def row(self, node: NodeId) -> Any:
        return types.SimpleNamespace(uuid=NODE) if node == NODE else None

    def repair(self, *servers: str, node: str | None = NODE) -> None:
        held: Any = types.SimpleNamespace(
            host='c1', row=self.row, locked_free_row=self.locked_free_row
        )
        RequestedRepairs(
            held,
            self.ironic,
            self.placement,
            self.in_progress,
            lambda: self.audits.append('audit'),
            begin=lambda name, act: act(),
        ).run(servers, [NodeId(node)] if node else [], self.rechecked.extend)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> _Cloud:
    """Return a cloud with one free node."""
    return _Cloud(monkeypatch)


def test_allocation_of_a_deleted_server_is_deleted(cloud: _Cloud) -> None:
    """One that Nova never had stays, and one that Nova has, too."""
    cloud.add_server(deleted=True)
    cloud.placement.allocations = {SERVER: {NODE}, 'stranger': {NODE}}
    cloud.repair()
    assert cloud.placement.allocations == {'stranger': {NODE}}
    assert cloud.audits == ['audit']


def _still_deployed(cloud: _Cloud) -> None:
    cloud.ironic.change(NODE, instance_uuid=SERVER)


def _not_deleted(cloud: _Cloud) -> None:
    cloud.add_server()


def _not_held(cloud: _Cloud) -> None:
    cloud.row = lambda node: None  # type: ignore[method-assign]


def _ironic_away(cloud: _Cloud) -> None:
    del cloud.ironic.nodes[NODE]


@pytest.mark.parametrize(
    'but', [_still_deployed, _not_deleted, _not_held, _ironic_away]
)
def test_allocation_is_kept(
    cloud: _Cloud, but: Callable[[_Cloud], None]
) -> None:
    """The teardown comes first; an error proves nothing."""
    cloud.add_server(deleted=True)
    cloud.placement.allocations = {SERVER: {NODE}}
    but(cloud)
    cloud.repair()
    assert cloud.placement.sent == []


def test_allocation_is_kept_while_a_thread_works_on_its_server(
    cloud: _Cloud,
) -> None:
    """That thread may be about to delete it."""
    cloud.add_server(deleted=True)
    cloud.placement.allocations = {SERVER: {NODE}}
    with cloud.in_progress.shared(SERVER):
        cloud.repair()
    assert cloud.placement.sent == []


@pytest.mark.parametrize('on', [set(), {OTHER}, {NODE, OTHER}])
def test_server_gets_the_allocation_of_its_node_alone(
    cloud: _Cloud, on: set[str]
) -> None:
    """In one request, in which the node is not reserved."""
    cloud.deploy()
    cloud.placement.allocations = {SERVER: on}
    cloud.repair(SERVER, node=None)
    ((url, body),) = cloud.placement.sent
    assert url == '/reshaper'
    assert body['inventories'] == {
        NODE: {
            'inventories': {CLASS: {'total': 1, 'reserved': 0}},
            'resource_provider_generation': 7,
        }
    }
    written = body['allocations'][SERVER]
    assert written['allocations'] == {NODE: {'resources': {CLASS: 1}}}
    assert written['consumer_generation'] == 3
    assert cloud.rechecked == [SERVER]
    assert cloud.audits == ['audit']


def _task(cloud: _Cloud) -> None:
    cloud.add_server(task_state='deleting')


def _building(cloud: _Cloud) -> None:
    cloud.add_server(vm_state='building')


def _elsewhere(cloud: _Cloud) -> None:
    cloud.add_server(host='c2')


def _other_in_ironic(cloud: _Cloud) -> None:
    cloud.ironic.change(NODE, instance_uuid='another')


def _not_active(cloud: _Cloud) -> None:
    cloud.ironic.change(NODE, provision_state='deploying')


def _right(cloud: _Cloud) -> None:
    cloud.placement.allocations[SERVER] = {NODE}


def _taken(cloud: _Cloud) -> None:
    cloud.placement.allocations['another'] = {NODE}


@pytest.mark.parametrize(
    'but',
    [
        *(_task, _building, _elsewhere, _other_in_ironic, _not_active),
        *(_right, _taken, _not_held, _ironic_away),
    ],
)
def test_allocation_is_not_restored(
    cloud: _Cloud, but: Callable[[_Cloud], None]
) -> None:
    """The server must be on its node in Nova and in Ironic, without a task."""
    cloud.deploy()
    but(cloud)
    cloud.repair(SERVER, node=None)
    assert cloud.placement.sent == []


def test_refused_allocation_is_logged(
    cloud: _Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody has changed the node at the same time."""
    cloud.deploy()
    cloud.placement.accepts = False
    cloud.repair(SERVER, node=None)
    assert 'Placement refused the allocation of server server' in caplog.text


def _leave_behind(cloud: _Cloud) -> None:
    cloud.ironic.attached[NODE] = ['v1', 'v2']
    cloud.ironic.targets = {'t': {'uuid': 't', 'node_uuid': NODE}}


def test_leftovers_of_a_free_node_are_removed(cloud: _Cloud) -> None:
    """All its VIFs and volume targets."""
    _leave_behind(cloud)
    cloud.repair()
    assert cloud.ironic.attached[NODE] == []
    assert cloud.ironic.targets == {}


def test_volume_targets_of_a_node_that_is_on_are_left(cloud: _Cloud) -> None:
    """Ironic would refuse their removal; the VIFs go."""
    _leave_behind(cloud)
    cloud.ironic.change(NODE, power_state='power on')
    cloud.repair()
    assert cloud.ironic.attached[NODE] == []
    assert cloud.ironic.targets != {}


def _claimed(cloud: _Cloud) -> None:
    cloud.is_free = False


def _cleaning(cloud: _Cloud) -> None:
    cloud.ironic.change(NODE, provision_state='cleaning')


@pytest.mark.parametrize('but', [_claimed, _cleaning, _still_deployed])
def test_leftovers_may_be_of_a_build(
    cloud: _Cloud, but: Callable[[_Cloud], None]
) -> None:
    """Ironic is read again, whatever this worker knew of the node."""
    _leave_behind(cloud)
    but(cloud)
    cloud.repair()
    assert cloud.ironic.attached[NODE] == ['v1', 'v2']
    assert cloud.ironic.targets != {}


def test_one_failure_stops_no_other_repair(cloud: _Cloud) -> None:
    """The allocations of a node are mended although its VIFs are not."""
    _leave_behind(cloud)
    cloud.deploy()
    cloud.ironic.read_node = _once_away(cloud.ironic.read_node)  # type: ignore[method-assign]
    cloud.repair(SERVER)
    assert len(cloud.placement.sent) == 1


def _once_away(read: Callable[[str], Any]) -> Callable[[str], Any]:
    failures = [errors.IronicUnavailable('no answer')]

    def read_node(node: str) -> Any:
        if failures:
            raise failures.pop()
        return read(node)

    return read_node
