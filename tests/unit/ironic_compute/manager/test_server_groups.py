# SPDX-License-Identifier: Apache-2.0
"""The scheduler gets the server group of a build as it is now."""

import types
from typing import Any

import nova.conf
import oslo_messaging
import pytest
from nova import context as nova_context
from nova import objects
from nova.objects import base as objects_base

from ironic_compute.manager.rescheduling import FreshCandidates, _no_host_error
from tests.fakes.clock import ManualClock

objects.register_all()

CONF = nova.conf.CONF
_USER = nova_context.RequestContext(project_id='p', is_admin=False)
_GROUP = '1e4a1a1c-6c6f-4f0e-9a30-5a4e8d0f2a10'


def _group(*members: str, policy: str = 'anti-affinity') -> Any:
    return objects.InstanceGroup(
        _USER, uuid=_GROUP, policy=policy, members=list(members)
    )


class _Conductor:
    """nova-conductor, with a group that another server has joined.

    :ivar hosts: of the other servers of the group
    """

    def __init__(self) -> None:
        self.has_api_database = True
        self.policy = 'anti-affinity'
        self.hosts = ['c2']

    def object_class_action_versions(
        self, context: Any, name: str, method: str, *args: Any
    ) -> Any:
        """Read the group."""
        assert (name, method) == ('InstanceGroup', 'get_by_uuid')
        if not self.has_api_database:
            raise oslo_messaging.RemoteError('CantStartEngineError')
        return _group('s1', 's2', policy=self.policy)

    def object_action(
        self, context: Any, group: Any, method: str, args: Any, kwargs: Any
    ) -> tuple[Any, list[str]]:
        """Read the hosts of all servers but one."""
        assert (method, kwargs) == ('get_hosts', {'exclude': ['s1']})
        return {}, list(self.hosts)


class _Scheduler:
    """Keeps the request specs that it gets, and finds no host."""

    def __init__(self) -> None:
        self.specs: list[Any] = []

    def select_destinations(
        self, context: Any, spec: Any, uuids: list[str], **how: bool
    ) -> list[list[Any]]:
        """Choose no host."""
        self.specs.append(spec)
        return [[]]


@pytest.fixture
def conductor(monkeypatch: pytest.MonkeyPatch) -> _Conductor:
    """Return the conductor that Nova's objects ask."""
    made = _Conductor()
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', made)
    return made


def _schedule(group: Any) -> Any:
    """Schedule a build anew; return the group that the scheduler gets."""
    client: Any = object.__new__(FreshCandidates)
    client._scheduler, client.clock = _Scheduler(), ManualClock()
    spec = objects.RequestSpec(
        requested_resources=None, instance_group=group, instance_uuid='s1'
    )
    request = {
        'context': _USER,
        'instances': [objects.Instance(uuid='s1')],
        'request_spec': spec,
        'filter_properties': {},
    }
    assert client._select_hosts(request) == []
    assert spec.instance_group is group
    return client._scheduler.specs[0].instance_group


def test_scheduler_gets_the_present_group(conductor: _Conductor) -> None:
    """Without s2 it chose the host of s2, which refused the server."""
    found = _schedule(_group('s1'))
    assert (found.members, found.hosts) == (['s1', 's2'], ['c2'])


def test_group_that_cannot_be_read_stays(conductor: _Conductor) -> None:
    """The conductor of a cell may have no API database."""
    conductor.has_api_database = False
    assert _schedule(_group('s1')).members == ['s1']


def test_nova_is_not_asked_without_a_group(conductor: _Conductor) -> None:
    """Most servers have none."""
    conductor.has_api_database = False
    assert _schedule(None) is None


def test_nova_is_not_asked_if_an_operator_says_so(
    conductor: _Conductor,
) -> None:
    """Each such request would be an error in a conductor's log."""
    name = 'disable_group_policy_check_upcall'
    CONF.set_override(name, True, 'workarounds')
    try:
        assert _schedule(_group('s1')).members == ['s1']
    finally:
        CONF.clear_override(name, 'workarounds')


_REFUSED = 'nova.exception.GroupAffinityViolation: Anti-affinity'


class _Build:
    """A build of a server whose group has another one on this host.

    :ivar alternates: the hosts of its alternate nodes
    :ivar group: the group as it is in the message
    """

    def __init__(self, attempts_count: int = 1) -> None:
        self.client: Any = object.__new__(FreshCandidates)
        self.client._scheduler = self.scheduler = _Scheduler()
        self.client.clock = ManualClock()
        self.client._gate = types.SimpleNamespace(wait=lambda: None)
        self.claimed: list[str] = []
        self.client._claim_alternate = self._claim_alternate
        self.group: Any = None
        self.client._end_build = self._end_build
        self.fault = ''
        self.alternates = [CONF.host, 'c2']
        self.properties: dict[str, Any] = {
            'retry': {'num_attempts': attempts_count}
        }

    def _claim_alternate(
        self, context: Any, instance: Any, spec: Any, hosts: list[Any]
    ) -> list[Any]:
        self.claimed += [host.service_host for host in hosts]
        return []

    def _end_build(self, context: Any, instance: Any, properties: Any) -> None:
        self.fault = str(_no_host_error(instance.uuid, properties))

    def fail(self, line: str) -> list[str] | None:
        """Reschedule the build; return the hosts that are left out."""
        self.claimed.clear()
        self.scheduler.specs.clear()
        self.properties['retry'].update(
            exc=['Traceback', line], exc_reason=line.partition(': ')[2]
        )
        self.client.build_instances(
            _USER,
            [objects.Instance(uuid='s1')],
            'image',
            self.properties,
            *['password', [], None, [], []],
            request_spec=objects.RequestSpec(
                requested_resources=None,
                ignore_hosts=['c9'],
                instance_group=self.group,
            ),
            host_lists=[
                [objects.Selection(service_host=h) for h in self.alternates]
            ],
        )
        specs = self.scheduler.specs
        return list(specs[0].ignore_hosts) if specs else None


def test_host_that_has_refused_a_server_is_left_out() -> None:
    """The alternates were on the same host, until no attempt was left.

    A host has many nodes, and the scheduler does not know its new servers.
    """
    build = _Build()
    assert build.fail(_REFUSED) == ['c9', CONF.host]
    assert build.claimed == ['c2']
    assert build.fail('InstanceDeployFailure: the disk is broken') is None
    assert build.claimed == ['c2']


@pytest.mark.parametrize(
    ('policy', 'hosts', 'is_left_out'),
    [
        ('anti-affinity', [CONF.host], True),
        ('anti-affinity', [], False),
        ('anti-affinity', ['c2'], False),
        ('affinity', ['c2'], True),
        ('affinity', [], False),
        ('affinity', [CONF.host], False),
    ],
)
def test_host_that_would_not_refuse_a_server_again_is_not_left_out(
    conductor: _Conductor, policy: str, hosts: list[str], *, is_left_out: bool
) -> None:
    """Two servers of a group that begin at the same moment are both refused.

    With anti-affinity that happens on one host, with affinity on two. These
    hosts were left out for good, so a server ended in ERROR.
    """
    conductor.policy, conductor.hosts = policy, hosts
    build = _Build()
    build.group = _group('s1', policy=policy)
    refused = [CONF.host] if is_left_out else []
    assert build.fail(_REFUSED) == ['c9', *refused]
    assert (CONF.host in build.claimed) is not is_left_out


@pytest.mark.parametrize('attempts_count', [1, CONF.scheduler.max_attempts])
def test_user_learns_that_the_group_has_no_host(attempts_count: int) -> None:
    """The fault named no reason if the last host had refused the server."""
    build = _Build(attempts_count)
    build.fail(_REFUSED)
    assert build.fault.endswith('Last exception: Anti-affinity')


def test_refusals_count_if_the_group_cannot_be_read(
    conductor: _Conductor,
) -> None:
    """The host is the one that has refused, as far as is known."""
    conductor.has_api_database = False
    build = _Build()
    build.group = _group('s1')
    assert build.fail(_REFUSED) == ['c9', CONF.host]


def test_build_that_has_failed_may_use_this_host_again() -> None:
    """Only a refusal is about the host; any other error about a node."""
    build = _Build()
    assert build.fail('InstanceDeployFailure: the disk is broken') is None
    assert build.claimed == [CONF.host, 'c2']


def test_last_attempt_that_was_refused_is_not_scheduled_anew() -> None:
    """A refusal counts as an attempt, unlike a lost node."""
    build = _Build(CONF.scheduler.max_attempts)
    assert build.fail(_REFUSED) is None
    assert build.claimed == []
