# SPDX-License-Identifier: Apache-2.0
"""Who is scheduled anew, and how often."""

import contextlib
import copy
import inspect
import json
import types
from typing import Any

import amqp.exceptions
import oslo_messaging
import pytest
import requests
from keystoneauth1 import exceptions as ksa_exceptions
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import rpcapi
from nova.compute import utils as compute_utils
from nova.conductor import api
from nova.objects import base as objects_base

from ironic_compute import delivery
from ironic_compute.manager.forwarding import HOPS, HOPS_MAX
from ironic_compute.manager.rescheduling import LOSSES_MAX, FreshCandidates
from tests.fakes.clock import ManualClock

objects.register_all()

_USER = nova_context.RequestContext(project_id='p', is_admin=False)
_NO_ERROR: Any = contextlib.nullcontext()
LOST = 'nova.exception.ComputeResourcesUnavailable: node n1 is in use by s2'
FAILED = 'nova.exception.InstanceDeployFailure: the disk is broken'


def _host(name: str) -> Any:
    return objects.Selection(
        service_host=name,
        nodename=f'n{name}',
        limits=None,
        availability_zone='z1',
        allocation_request='{}',
        allocation_request_version='1.36',
    )


_ALTERNATES = [[_host('a'), _host('d')]]
_FRESH = [[_host('b'), _host('c')]]


class _Scheduler:
    """Chooses hosts, or fails."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.specs: list[Any] = []

    def select_destinations(
        self, context: Any, spec: Any, uuids: list[str], **how: bool
    ) -> Any:
        assert how == {'return_objects': True, 'return_alternates': True}
        self.specs.append(spec)
        if self.error is not None:
            raise self.error
        return _FRESH


def _next(answers: list[Any], default: Any) -> Any:
    answer = answers.pop(0) if answers else default
    if isinstance(answer, Exception):
        raise answer
    return answer


class _Placement:
    """Records the servers whose allocation is deleted.

    :ivar answers: an error or the nodes of the server, once each; then none
    :ivar claims: an error, or whether the next node is free, once each; then
        each node is free
    """

    def __init__(self) -> None:
        self.freed: list[str] = []
        self.answers: list[Any] = []
        self.claims: list[Any] = []

    def get_allocs_for_consumer(self, context: Any, server: str) -> Any:
        return {'allocations': _next(self.answers, {})}

    def claim_resources(
        self, context: Any, server: str, *args: str, **kwargs: str | None
    ) -> bool | None:
        return _next(self.claims, True)

    def delete_allocation_for_instance(
        self, context: Any, server: str, force: bool
    ) -> None:
        self.freed.append(server)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The host lists that the conductor gets."""
    lists: list[Any] = []
    monkeypatch.setattr(
        api.ComputeTaskAPI,
        'build_instances',
        lambda *args, **kwargs: lists.append(kwargs['host_lists']),
    )
    return lists


class _Conductor:
    """nova-conductor with the records of one cell.

    :ivar volumes: of the server
    :ivar hosts: of the cell
    :ivar holders: node -> the host in its row
    """

    def __init__(self) -> None:
        self.volumes: list[Any] = []
        self.hosts = ['a', 'b', 'd']
        self.holders: dict[str, str] = {}
        self.is_up = True
        self.saved: list[tuple[str, str]] = []

    def object_action(
        self, context: Any, bdm: Any, method: str, *args: Any
    ) -> tuple[Any, None]:
        assert method == 'save'
        self.saved.append((bdm.volume_id, bdm.attachment_id))
        return {}, None

    def object_class_action_versions(
        self, context: Any, name: str, method: str, *args: Any
    ) -> Any:
        if not self.is_up:
            raise oslo_messaging.MessagingTimeout
        if name == 'BlockDeviceMappingList':
            return objects.BlockDeviceMappingList(objects=self.volumes)
        if name == 'ComputeNode' and args[1][0] in self.holders:
            return objects.ComputeNode(host=self.holders[args[1][0]])
        host = args[1][0]
        if host not in self.hosts:
            raise nova_exception.ComputeHostNotFound(host=host)
        return objects.Service(host=host)


class _Cinder:
    """Cinder with the attachments of some volumes."""

    def __init__(self) -> None:
        self.attachments = {'a1': 'v1'}
        self.is_up = True
        self.loses_answer = False

    def attachment_get(self, context: Any, attachment: str) -> None:
        if not self.is_up:
            raise nova_exception.CinderConnectionFailed(reason='away')
        if attachment not in self.attachments:
            raise nova_exception.VolumeAttachmentNotFound(
                attachment_id=attachment
            )

    def attachment_create(
        self, context: Any, volume: str, server: str
    ) -> dict[str, str]:
        name = f'new of {server}'
        while name in self.attachments:
            name = f'another {name}'
        self.attachments[name] = volume
        if self.loses_answer:
            raise nova_exception.CinderConnectionFailed(reason='no answer')
        return {'id': name}

    def attachment_get_all(
        self, context: Any, instance_id: str
    ) -> list[dict[str, str]]:
        return [
            {'id': name, 'volume_id': volume, 'status': 'reserved'}
            for name, volume in self.attachments.items()
        ]


class _Server(types.SimpleNamespace):
    """A server that waits for a host, with its row in Nova's database.

    :ivar row: the row when it is read; None if the server is gone
    :ivar before_save: what changes in the row before the save arrives
    """

    def __init__(self) -> None:
        super().__init__(uuid='s1', availability_zone='z1')
        self.row: dict[str, Any] | None = {
            'vm_state': 'building',
            'task_state': 'scheduling',
            'host': None,
        }
        self.before_save: dict[str, Any] = {}

    def obj_get_changes(self) -> dict[str, Any]:
        return {}

    def refresh(self) -> None:
        if self.row is None:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)
        vars(self).update(self.row)

    def save(
        self, expected_vm_state: list[Any], expected_task_state: list[Any]
    ) -> None:
        assert self.row is not None
        self.row.update(self.before_save)
        if (
            self.row['vm_state'] not in expected_vm_state
            or self.row['task_state'] not in expected_task_state
        ):
            raise nova_exception.InstanceUpdateConflict(
                instance_uuid=self.uuid, expected={}, actual={}
            )
        self.row.update(vm_state=self.vm_state, task_state=self.task_state)


class _Gate:
    """A lease gate that shuts for good after some waits.

    :ivar passes_count: how often it lets a thread through
    """

    passes_count = 1000

    def wait(self) -> None:
        if not self.passes_count:
            raise _Killed
        self.passes_count -= 1


class _Killed(Exception):
    """The worker was killed while it waited at the gate."""


class _Hosts:
    """Records the builds that are sent to compute hosts."""

    def __init__(self) -> None:
        self.builds: list[tuple[str, str, Any]] = []
        self.properties: dict[str, Any] = {}
        self.have_queues = True

    def build_and_run_instance(
        self, context: Any, instance: Any, host: str, *args: Any
    ) -> None:
        if not self.have_queues:
            raise oslo_messaging.MessageUndeliverable(None, None, None, None)
        rpcapi_names = list(
            inspect.signature(
                rpcapi.ComputeAPI.build_and_run_instance
            ).parameters
        )[4:]
        given = dict(zip(rpcapi_names, args, strict=False))
        self.properties = given['filter_properties']
        self.builds.append((host, given['node'], given['host_list']))


@pytest.fixture
def conductor(monkeypatch: pytest.MonkeyPatch) -> _Conductor:
    made = _Conductor()
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', made)
    return made


@pytest.fixture
def client(conductor: _Conductor) -> Any:
    made: Any = object.__new__(FreshCandidates)
    made._scheduler, made._reportclient = _Scheduler(), _Placement()
    made._compute_rpcapi, made._volume_api = _Hosts(), _Cinder()
    made.clock, made._gate = ManualClock(), _Gate()
    return made


def _reschedule(
    client: Any,
    properties: dict[str, Any],
    host_lists: Any = _ALTERNATES,
    server: Any = None,
) -> None:
    client.build_instances(
        _USER,
        [server or _Server()],
        'image',
        properties,
        'password',
        [],
        None,
        [],
        [],
        request_spec=objects.RequestSpec(
            requested_resources=None, project_id='p', user_id='u'
        ),
        host_lists=copy.deepcopy(host_lists),
    )


def _properties(line: str) -> dict[str, Any]:
    return {
        'retry': {'num_attempts': 2, 'hosts': [], 'exc': ['Traceback', line]}
    }


def test_loser_of_a_node_goes_to_a_fresh_host_with_its_allocation(
    sent: list[Any], client: Any
) -> None:
    """In a burst, a node that is given up for a moment is gone."""
    properties = _properties(LOST)
    _reschedule(client, properties)
    assert client._compute_rpcapi.builds == [('b', 'nb', _FRESH[0][1:])]
    assert client._scheduler.specs[0].requested_resources == []
    assert (sent, client._reportclient.freed) == ([], [])


def test_a_loss_is_not_counted_as_an_attempt(
    sent: list[Any], client: Any
) -> None:
    """The second attempt stays the second one, however many are lost."""
    properties = _properties(LOST)
    for _ in range(3):
        _reschedule(client, properties)
        properties = client._compute_rpcapi.properties
        properties['retry']['exc'] = [LOST]
        assert properties['retry']['num_attempts'] == 2
    assert properties['retry']['hosts'] == [['b', 'nb']] * 3


def _volume(number: int) -> Any:
    return objects.BlockDeviceMapping(
        nova_context.get_admin_context(),
        source_type='volume',
        destination_type='volume',
        volume_id=f'v{number}',
        attachment_id=f'a{number}',
    )


def test_loser_with_volumes_is_sent_with_attachments(
    sent: list[Any], client: Any, conductor: _Conductor
) -> None:
    """The failed build has deleted one attachment; it is made again."""
    conductor.volumes = [_volume(1), _volume(2)]
    _reschedule(client, _properties(LOST))
    assert client._volume_api.attachments == {'a1': 'v1', 'new of s1': 'v2'}
    assert conductor.saved == [('v2', 'new of s1')]
    assert [host for host, _, _ in client._compute_rpcapi.builds] == ['b']
    assert (sent, client._reportclient.freed) == ([], [])


def test_reservation_whose_answer_was_lost_is_found(
    client: Any, conductor: _Conductor
) -> None:
    """No record of Nova would name it, and the volume never be free."""
    conductor.volumes, cinder = [_volume(2)], client._volume_api
    cinder.loses_answer = True
    with pytest.raises(nova_exception.CinderConnectionFailed):
        client.renew_volumes(_USER, 's1')
    cinder.loses_answer, conductor.volumes = False, [_volume(2)]
    client.renew_volumes(_USER, 's1')
    assert cinder.attachments == {'a1': 'v1', 'new of s1': 'v2'}
    assert conductor.saved == [('v2', 'new of s1')]


def test_loser_is_left_to_the_conductor_if_cinder_does_not_answer(
    sent: list[Any], client: Any, conductor: _Conductor
) -> None:
    """Its allocation is given up, because the conductor makes a new one."""
    conductor.volumes = [_volume(1)]
    client._volume_api.is_up = False
    _reschedule(client, _properties(LOST))
    assert sent == [_FRESH]
    assert client._reportclient.freed == ['s1']


def test_loser_is_left_to_the_conductor_if_its_host_has_no_queue(
    sent: list[Any], client: Any
) -> None:
    """RabbitMQ would drop the build without a word."""
    client._compute_rpcapi.have_queues = False
    _reschedule(client, _properties(LOST))
    assert sent == [_FRESH]


def test_loser_waits_in_the_queue_of_a_conductor_that_does_not_answer(
    sent: list[Any], client: Any, conductor: _Conductor
) -> None:
    """Its records cannot be read, but a message can be sent."""
    conductor.is_up = False
    _reschedule(client, _properties(LOST))
    assert sent == [_FRESH]


def test_loser_is_left_to_the_conductor_when_the_broker_takes_it(
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its allocation is deleted by then, and its message ends with this."""
    answers: list[Any] = [
        oslo_messaging.MessageDeliveryFailure('(541) vhost is down'),
        amqp.exceptions.NotAllowed('vhost not found'),
        'taken',
    ]
    monkeypatch.setattr(
        api.ComputeTaskAPI,
        'build_instances',
        lambda *args, **kwargs: _next(answers, None),
    )
    client._compute_rpcapi.have_queues = False
    _reschedule(client, _properties(LOST))
    assert answers == []
    assert caplog.text.count('for nova-conductor is sent when RabbitMQ') == 2


def test_loser_that_the_broker_refuses_needs_the_lease_to_be_sent_again(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker of the host has got its message again by then.

    The conductor would build the server a second time, or set it to ERROR.
    """
    answers: list[Any] = [
        oslo_messaging.MessageDeliveryFailure('(541) vhost is down'),
        'taken',
    ]

    def cast(*args: Any, **kwargs: Any) -> Any:
        client._gate.passes_count = 0
        return _next(answers, None)

    monkeypatch.setattr(api.ComputeTaskAPI, 'build_instances', cast)
    client._compute_rpcapi.have_queues = False
    with pytest.raises(_Killed):
        _reschedule(client, _properties(LOST))
    assert answers == ['taken']


@pytest.mark.parametrize('host_lists', [None, _ALTERNATES])
@pytest.mark.parametrize('line', [LOST, FAILED])
@pytest.mark.parametrize('passes_count', [0, 1])
def test_worker_without_a_lease_sends_no_build_on(
    passes_count: int,
    line: str,
    host_lists: Any,
    sent: list[Any],
    client: Any,
) -> None:
    """The next worker of the host has got the message again by then."""
    client._gate.passes_count = passes_count
    with pytest.raises(_Killed):
        _reschedule(client, _properties(line), host_lists)
    assert sent == []
    assert client._compute_rpcapi.builds == []
    assert bool(client._scheduler.specs) <= bool(passes_count)


def test_loser_of_many_nodes_takes_its_time(
    sent: list[Any], client: Any
) -> None:
    """A node that is offered and cannot be had ends no build in seconds."""
    properties = _properties(LOST)
    begun_s = client.clock.now_s()
    waited_s = []
    for _ in range(LOSSES_MAX):
        _reschedule(client, properties)
        waited_s.append(client.clock.now_s() - begun_s)
        properties = client._compute_rpcapi.properties
        properties['retry']['exc'] = [LOST]
    assert waited_s[2] == 0.0
    assert waited_s[3:7] == [0.5, 1.5, 3.5, 7.5]
    assert waited_s[-1] > 60.0


def test_loser_with_a_new_node_may_be_forwarded_again(
    sent: list[Any], client: Any
) -> None:
    """The hops were those of the former node."""
    properties = {**_properties(LOST), HOPS: HOPS_MAX}
    _reschedule(client, properties)
    assert HOPS not in client._compute_rpcapi.properties


def test_loser_whose_new_host_is_in_another_cell_goes_through_the_conductor(
    sent: list[Any], client: Any, conductor: _Conductor
) -> None:
    """The message bus of another cell is another one."""
    conductor.hosts = []
    _reschedule(client, _properties(LOST))
    assert sent == [_FRESH]


def test_build_goes_to_the_holder_of_the_alternate_node(
    sent: list[Any], client: Any, conductor: _Conductor
) -> None:
    """The deploy took an hour, and the host that held the node is retired.

    Nobody reads the queue of that host any more.
    """
    conductor.hosts = ['b', 'd']
    conductor.holders = {'na': 'b'}
    _reschedule(client, _properties(FAILED))
    ((host, node, rest),) = client._compute_rpcapi.builds
    assert (host, node, [other.nodename for other in rest]) == (
        'b',
        'na',
        ['nd'],
    )
    assert (sent, client._reportclient.freed) == ([], [])
    client._compute_rpcapi.have_queues = False
    _reschedule(client, _properties(FAILED))
    assert sent[0][0][0].service_host == 'b'


def test_other_failures_get_their_alternates(
    sent: list[Any], client: Any
) -> None:
    """Such a failure counts, as in Nova.

    The conductor would not look at the server, which may have been built.
    """
    _reschedule(client, _properties(FAILED))
    ((host, node, others),) = client._compute_rpcapi.builds
    assert (host, node, [each.nodename for each in others]) == (
        'a',
        'na',
        ['nd'],
    )
    assert client._compute_rpcapi.properties['retry']['num_attempts'] == 3
    assert (sent, client._scheduler.specs) == ([], [])


def test_alternate_that_is_in_use_is_passed_over(
    sent: list[Any], client: Any
) -> None:
    """Its node was allocated to another server since."""
    client._reportclient.claims = [False, True]
    _reschedule(client, _properties(FAILED))
    assert client._compute_rpcapi.builds == [('d', 'nd', [])]


@pytest.mark.parametrize(
    'claims',
    [
        [None],
        [ksa_exceptions.ConnectFailure()],
        [nova_exception.AllocationUpdateFailed(consumer_uuid='s1', error='')],
    ],
)
@pytest.mark.parametrize(
    ('answers', 'builds'),
    [
        ([{}, {}], ['a']),
        ([{}, {'na': {}}], ['a']),
        ([{}, {'nx': {}}], []),
    ],
)
def test_claim_without_an_answer_is_repeated_unless_it_was_made(
    claims: list[Any],
    answers: list[Any],
    builds: list[str],
    sent: list[Any],
    client: Any,
) -> None:
    """Another build of the server may have got another node meanwhile."""
    client._reportclient.claims = [*claims]
    client._reportclient.answers = [*answers, *answers[1:]]
    begun_s = client.clock.now_s()
    with delivery.Delivery(lambda: None).handled():
        _reschedule(client, _properties(FAILED))
    assert client.clock.now_s() - begun_s == 10.0
    assert [host for host, _, _ in client._compute_rpcapi.builds] == builds
    assert sent == []


def test_last_attempt_is_ended_by_the_worker(
    sent: list[Any], client: Any, faults: list[str]
) -> None:
    """The fault has the sentences that Nova's users know."""
    server, properties = _Server(), _properties(FAILED)
    properties['retry'].update(num_attempts=3, exc_reason='a broken disk')
    _reschedule(client, properties, server=server)
    assert server.row is not None
    assert server.row['vm_state'] == 'error'
    assert faults == [
        'Exceeded maximum number of retries. Exceeded max scheduling attempts '
        '3 for instance s1. Last exception: a broken disk'
    ]
    assert (sent, client._compute_rpcapi.builds) == ([], [])


def test_build_without_a_list_is_scheduled_anew(
    sent: list[Any], client: Any
) -> None:
    """Its allocation was given up by a worker that has ended."""
    retry = {'retry': {'num_attempts': 1, 'hosts': []}}
    _reschedule(client, retry, host_lists=None)
    assert [host for host, _, _ in client._compute_rpcapi.builds] == ['b']


def test_build_without_retries_is_scheduled_anew(
    sent: list[Any], client: Any
) -> None:
    """The conductor would take it for one that no cell has yet."""
    _reschedule(client, {}, host_lists=None)
    assert [host for host, _, _ in client._compute_rpcapi.builds] == ['b']
    assert sent == []


@pytest.mark.parametrize(
    ('error', 'host_lists', 'tried'),
    [
        (nova_exception.NoValidHost(reason=''), _ALTERNATES, ['a']),
        (oslo_messaging.MessagingTimeout(), _ALTERNATES, ['a']),
        (oslo_messaging.MessagingTimeout(), None, []),
    ],
)
def test_scheduler_that_finds_nothing_leaves_the_alternates(
    error: Exception,
    host_lists: Any,
    tried: list[Any],
    sent: list[Any],
    client: Any,
) -> None:
    """A build that has none waits for the scheduler."""
    client._scheduler.error = error
    expected = pytest.raises(type(error)) if not tried else _NO_ERROR
    with expected:
        _reschedule(client, _properties(LOST), host_lists)
    assert [host for host, _, _ in client._compute_rpcapi.builds] == tried
    assert (sent, client._reportclient.freed) == ([], [])


_ALLOCATED = {'nx': {'resources': {'CUSTOM_GOLD': 1}}}


@pytest.mark.parametrize(
    'answers',
    [
        [_ALLOCATED],
        [ksa_exceptions.ConnectFailure(), _ALLOCATED],
        [{}, _ALLOCATED],
    ],
)
def test_build_goes_to_the_node_that_was_allocated_without_an_answer(
    answers: list[Any], sent: list[Any], client: Any, conductor: _Conductor
) -> None:
    """The scheduler's answer was lost; also if it allocates just now."""
    conductor.holders = {'nx': 'b'}
    client._scheduler.error = oslo_messaging.MessagingTimeout()
    client._reportclient.answers = answers
    server = _Server()
    with delivery.Delivery(lambda: None).handled():
        _reschedule(client, _properties(LOST), server=server)
    ((host, node, others),) = client._compute_rpcapi.builds
    assert (host, node) == ('b', 'nx')
    assert [each.nodename for each in others] == ['na', 'nd']
    retry = client._compute_rpcapi.properties['retry']
    assert retry['hosts'] == [['b', 'nx']]
    assert server.availability_zone == 'z1'
    assert (sent, client._reportclient.freed) == ([], [])


def test_conductor_can_allocate_the_node_of_a_lost_answer_anew(
    sent: list[Any], client: Any, conductor: _Conductor
) -> None:
    """The holder of the node has no queue."""
    conductor.holders = {'nx': 'b'}
    client._scheduler.error = oslo_messaging.MessagingTimeout()
    client._reportclient.answers = [_ALLOCATED]
    client._compute_rpcapi.have_queues = False
    _reschedule(client, _properties(LOST))
    (((first, *_),),) = sent
    assert json.loads(first.allocation_request) == {'allocations': _ALLOCATED}
    assert first.allocation_request_version == '1.36'
    assert client._reportclient.freed == ['s1']


def test_allocated_node_without_a_row_is_left_alone(
    sent: list[Any], client: Any
) -> None:
    """Nobody can build there; ``lost_builds`` ends the build."""
    client._scheduler.error = oslo_messaging.MessagingTimeout()
    client._reportclient.answers = [_ALLOCATED] * 3
    server = _Server()
    _reschedule(client, _properties(LOST), server=server)
    assert server.row is not None
    assert server.row['vm_state'] == 'building'
    assert (sent, client._compute_rpcapi.builds) == ([], [])


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The faults that are recorded for servers."""
    made: list[str] = []
    monkeypatch.setattr(
        compute_utils,
        'add_instance_fault_from_exc',
        lambda context, instance, exc: made.append(str(exc)),
    )
    return made


def _end(client: Any, server: _Server, host_lists: Any = None) -> None:
    client._scheduler.error = nova_exception.NoValidHost(reason='')
    _reschedule(client, _properties(FAILED), host_lists, server)


@pytest.mark.parametrize('host_lists', [None, [[]]])
@pytest.mark.parametrize('task_state', ['scheduling', None])
def test_build_without_hosts_is_ended_by_the_worker(
    task_state: str | None,
    host_lists: Any,
    sent: list[Any],
    client: Any,
    faults: list[str],
) -> None:
    """The conductor would save ERROR without a look at the server."""
    server = _Server()
    server.row = {'vm_state': 'building', 'task_state': task_state}
    server.row['host'] = None
    _end(client, server, host_lists)
    ended = {'vm_state': 'error', 'task_state': None, 'host': None}
    assert server.row == ended
    assert len(faults) == 1
    assert 'Exhausted all hosts available' in faults[0]
    assert sent == []


def test_build_without_hosts_is_ended_when_the_broker_takes_it(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova's fault is not sent again by itself; the server stayed BUILDING."""
    answers: list[Any] = [
        oslo_messaging.MessageDeliveryFailure('(541) vhost is down'),
        None,
    ]
    monkeypatch.setattr(
        compute_utils,
        'add_instance_fault_from_exc',
        lambda *args: _next(answers, None),
    )
    server = _Server()
    _end(client, server)
    assert server.row is not None
    assert server.row['vm_state'] == 'error'


@pytest.mark.parametrize(
    'row',
    [
        {'vm_state': 'active', 'task_state': None, 'host': 'b'},
        {'vm_state': 'building', 'task_state': 'spawning', 'host': 'b'},
        {'vm_state': 'building', 'task_state': 'deleting', 'host': None},
        None,
    ],
)
def test_build_that_was_rescheduled_twice_ends_no_other_one(
    row: Any, sent: list[Any], client: Any, faults: list[str]
) -> None:
    """Its message came again after its first worker had rescheduled it."""
    server = _Server()
    server.row = row
    _end(client, server)
    assert server.row == row
    assert (sent, faults) == ([], [])
    # The scheduler may have allocated a node to the deleted server, too late.
    assert client._reportclient.freed == ([] if row else ['s1'])


def test_build_whose_server_has_a_node_goes_on_there(
    sent: list[Any], client: Any, faults: list[str]
) -> None:
    """Its message is under way; Nova and Placement are asked until then."""
    server = _Server()
    client._reportclient.answers = [
        nova_exception.ConsumerAllocationRetrievalFailed(
            consumer_uuid='s1', error='away'
        ),
        ksa_exceptions.ConnectFailure(),
        requests.JSONDecodeError('Expecting value', '<html>', 0),
        oslo_messaging.MessagingTimeout(),
        {'nb': {}},
    ]
    _end(client, server)
    assert server.row is not None
    assert server.row['vm_state'] == 'building'
    assert client._reportclient.answers == []
    assert (sent, faults) == ([], [])


@pytest.mark.parametrize(
    'change',
    [
        {'vm_state': 'active', 'task_state': None, 'host': 'b'},
        {'task_state': None},
        {'task_state': 'deleting'},
    ],
)
def test_build_that_goes_on_before_the_save_is_not_ended(
    change: Any, sent: list[Any], client: Any, faults: list[str]
) -> None:
    """Another host begins it, or its user deletes it, at that moment."""
    server = _Server()
    server.before_save = change
    expected = {**(server.row or {}), **change}
    _end(client, server)
    assert server.row == expected
    assert sent == []


def test_worker_without_a_lease_ends_no_build(
    sent: list[Any], client: Any, faults: list[str]
) -> None:
    """It loses the lease while Placement is asked."""
    server = _Server()
    client._gate.passes_count = 2
    with pytest.raises(_Killed):
        _end(client, server)
    assert server.row is not None
    assert server.row['vm_state'] == 'building'


def test_losses_without_end_are_counted(sent: list[Any], client: Any) -> None:
    """A node that Placement offers and no build can have ends the build."""
    properties = _properties(LOST)
    for _ in range(LOSSES_MAX):
        _reschedule(client, properties)
        properties = client._compute_rpcapi.properties
        properties['retry']['exc'] = [LOST]
    _reschedule(client, properties)
    assert client._compute_rpcapi.properties['retry']['num_attempts'] == 3
    assert client._compute_rpcapi.builds[-1][0] == 'a'
    assert sent == []
