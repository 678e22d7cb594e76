# SPDX-License-Identifier: Apache-2.0
"""Access of the operator's commands to Nova's records."""

import sys
from collections.abc import Callable

import oslo_messaging
import pytest
from nova import exception as nova_exception
from nova.objects import base
from oslo_config import cfg
from oslo_messaging._drivers import common

from hashring.ring import Host
from ironic_compute.cmd import (
    drain,
    hosts,
    node_moves,
    node_views,
    nova_access,
)
from resource_tracker.node import NodeId


def test_commands_speak_on_the_exchange_of_nova(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RPC goes to Nova's exchange; no service uses the default one."""
    found: list[str] = []

    def init(conf: object) -> None:
        fresh = cfg.ConfigOpts()  # An exchange once read is remembered.
        oslo_messaging.get_rpc_transport(fresh, 'fake://')
        found.append(fresh.control_exchange)

    oslo_messaging.set_transport_defaults('openstack')
    monkeypatch.setattr('nova.rpc.init', init)
    monkeypatch.setattr('nova.conductor.rpcapi.ConductorAPI', object)
    monkeypatch.setattr(base.NovaObject, 'indirection_api', None)
    monkeypatch.setattr('nova.rpc.get_transport_url', lambda: 'fake://')
    nova_access.use_nova_conductor()
    assert found == ['nova']


@pytest.mark.parametrize(
    ('exc_type', 'sentence'),
    [
        ('UnsupportedVersion', 'too old'),
        ('NoSuchMethod', 'too old'),
        (
            'MessagingTimeout',
            r'has failed \(MessagingTimeout: no answer\), so',
        ),
    ],
)
def test_a_worker_that_fails_is_not_called_old(
    exc_type: str, sentence: str
) -> None:
    """Such as while its nova-conductor is away; no traceback is shown."""

    def request() -> None:
        raise oslo_messaging.RemoteError(
            exc_type, 'no answer', ['Traceback (most recent call last):']
        )

    with pytest.raises(nova_access.NovaRefused, match=sentence) as caught:
        nova_access.ask_worker(request, no_answer='', too_old='too old')
    assert 'Traceback' not in str(caught.value)
    if sentence != 'too old':
        with pytest.raises(nova_access.NovaRefused, match=sentence):
            hosts.send_to_any(lambda host: request(), [Host('c1')])


def _sent_through_rabbitmq(error: Exception) -> Exception:
    """Return the error that a caller gets if a worker raises this one."""
    try:
        raise error
    except Exception:
        sent = common.serialize_remote_exception(sys.exc_info())
    found: Exception = common.deserialize_remote_exception(
        sent, ['nova.exception']
    )
    return found


@pytest.mark.parametrize(
    ('error', 'why'),
    [
        (
            oslo_messaging.RemoteError(
                'DBConnectionError',
                "Can't connect\nto db",
                ['Traceback (most recent call last):\n', '  File "api.py"\n'],
            ),
            "RemoteError: Remote error: DBConnectionError Can't connect to db",
        ),
        (
            nova_exception.ServiceNotFound(service_id=7),
            'ServiceNotFound: Service 7 could not be found.',
        ),
        (ValueError('no uuid'), 'ValueError: no uuid'),
        (OSError(5, 'I/O error'), 'OSError: [Errno 5] I/O error'),
        (AssertionError(), 'AssertionError: '),
    ],
)
def test_no_error_of_a_worker_shows_a_traceback(
    error: Exception, why: str
) -> None:
    """Also that of nova-conductor in it; some come with their own class."""

    def request(*_hosts: Host) -> None:
        raise _sent_through_rabbitmq(error)

    sentence = (
        f'The worker that was asked has failed ({why}), so what was requested '
        f'may be done or not; see its log'
    )
    with pytest.raises(nova_access.NovaRefused) as caught:
        nova_access.ask_worker(request, no_answer='', too_old='')
    assert str(caught.value) == sentence
    with pytest.raises(nova_access.NovaRefused) as caught:
        hosts.send_to_any(request, [Host('c1')])
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    'error',
    [nova_exception.ServiceNotFound(service_id=7), OSError(24, 'Too many')],
)
def test_no_error_of_a_conductor_shows_a_traceback(error: Exception) -> None:
    """They come with their own class; a command that waits goes on."""

    def read() -> None:
        raise _sent_through_rabbitmq(error)

    name = type(error).__name__
    found = nova_access.try_soon(read, 60.0)
    assert str(found).startswith(f'nova-conductor has failed ({name}: ')
    assert 'Traceback' not in str(found)
    waits = drain.try_read(read)
    assert str(waits) == f'nova-conductor has failed ({name})'


def test_error_of_the_command_itself_is_not_called_remote() -> None:
    """It is a fault of the command, or has a sentence of its own."""

    def read() -> None:
        raise KeyError('host')

    with pytest.raises(KeyError):
        drain.try_read(read)
    with pytest.raises(KeyError), nova_access.translated_conductor():
        read()


def test_a_silent_conductor_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """oslo.messaging says only the id of a message."""

    def read_row(node: NodeId) -> None:
        raise oslo_messaging.MessagingTimeout('message ID 1234')

    monkeypatch.setattr(node_moves, 'read_row', read_row)
    with pytest.raises(nova_access.NovaRefused, match='nova-conductor does'):
        node_moves.read_holder(NodeId('n1'))


@pytest.mark.parametrize(
    'read',
    [
        lambda: node_moves.read_holder(NodeId('n1')),
        node_views.read_held,
        lambda: nova_access.try_soon(_fail, 10.0),
    ],
)
def test_conductor_without_a_database_is_named(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], object]
) -> None:
    """Its error comes with a traceback, which is not shown."""
    monkeypatch.setattr(base.NovaObject, 'indirection_api', _Conductor())
    with pytest.raises(nova_access.NovaRefused) as caught:
        raise_if_returned(read())
    assert str(caught.value) == (
        'nova-conductor has failed (DBConnectionError: (2003, "Can\'t connect '
        'to db")); see its log, and check that its database answers'
    )


def raise_if_returned(found: object) -> None:
    """Raise a refusal that is returned and not raised."""
    if isinstance(found, Exception):
        raise found


def _fail(*_arguments: object, **_options: object) -> None:
    raise oslo_messaging.RemoteError(
        'DBConnectionError',
        '(2003, "Can\'t connect\nto db")',
        ['Traceback (most recent call last):'],
    )


class _Conductor:
    """A nova-conductor whose database is away."""

    object_action = object_class_action_versions = staticmethod(_fail)
