# SPDX-License-Identifier: Apache-2.0
"""Who is scheduled anew, and how often."""

import contextlib
import types
from typing import Any

import oslo_messaging
import pytest
from nova import exception as nova_exception
from nova import objects
from nova.conductor import api

from ironic_compute.manager.rescheduling import LOSSES_MAX, FreshCandidates

objects.register_all()

_NO_ERROR: Any = contextlib.nullcontext()
_ALTERNATES = [['a']]
LOST = 'nova.exception.ComputeResourcesUnavailable: node n1 is in use by s2'
FAILED = 'nova.exception.InstanceDeployFailure: the disk is broken'


_FRESH = [['b', 'c']]


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


class _Placement:
    """Records the servers whose allocation is deleted."""

    def __init__(self) -> None:
        self.freed: list[str] = []

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


@pytest.fixture
def client() -> Any:
    made: Any = object.__new__(FreshCandidates)
    made._scheduler, made._reportclient = _Scheduler(), _Placement()
    return made


def _reschedule(
    client: Any, properties: dict[str, Any], host_lists: Any = _ALTERNATES
) -> None:
    client.build_instances(
        None,
        [types.SimpleNamespace(uuid='s1')],
        'image',
        properties,
        'password',
        request_spec=objects.RequestSpec(requested_resources=None),
        host_lists=host_lists,
    )


def _properties(line: str) -> dict[str, Any]:
    return {'retry': {'num_attempts': 1, 'exc': ['Traceback', line]}}


def test_loser_of_a_node_gets_fresh_candidates(
    sent: list[Any], client: Any
) -> None:
    """The loss is not counted, but the first attempt is.

    The conductor makes the allocation again, of one of the new hosts.
    """
    properties = _properties(LOST)
    _reschedule(client, properties)
    assert sent == [_FRESH]
    assert client._scheduler.specs[0].requested_resources == []
    assert client._reportclient.freed == ['s1']
    assert properties['retry']['num_attempts'] == 1
    properties['retry']['num_attempts'] = 2
    _reschedule(client, properties)
    assert properties['retry']['num_attempts'] == 1


def test_other_failures_get_their_alternates(
    sent: list[Any], client: Any
) -> None:
    """Such a failure counts, as in Nova."""
    properties = _properties(FAILED)
    _reschedule(client, properties)
    assert sent == [_ALTERNATES]
    assert properties['retry']['num_attempts'] == 1
    assert not client._scheduler.specs


def test_build_without_a_list_is_scheduled_anew(
    sent: list[Any], client: Any
) -> None:
    """Its allocation was given up by a worker that has ended."""
    _reschedule(client, {}, host_lists=None)
    assert sent == [_FRESH]


@pytest.mark.parametrize(
    ('error', 'host_lists', 'tried'),
    [
        (nova_exception.NoValidHost(reason=''), _ALTERNATES, [_ALTERNATES]),
        (nova_exception.NoValidHost(reason=''), None, [[[]]]),
        (oslo_messaging.MessagingTimeout(), _ALTERNATES, [_ALTERNATES]),
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
    """A build that has none waits for the scheduler, or ends."""
    client._scheduler.error = error
    expected = pytest.raises(type(error)) if not tried else _NO_ERROR
    with expected:
        _reschedule(client, _properties(LOST), host_lists)
    assert sent == tried
    assert not client._reportclient.freed


def test_losses_without_end_are_counted(sent: list[Any], client: Any) -> None:
    """A node that Placement offers and no build can have ends the build."""
    properties = _properties(LOST)
    properties['retry']['num_attempts'] = LOSSES_MAX + 1
    for _ in range(LOSSES_MAX + 1):
        _reschedule(client, properties)
    assert properties['retry']['num_attempts'] == 1
