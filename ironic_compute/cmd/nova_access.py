# SPDX-License-Identifier: Apache-2.0
"""Access to Nova's records and workers for the operator's commands."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import nova.conf
import oslo_messaging

from ironic_compute import access_errors, queue_names

CONF = nova.conf.CONF
Answer = TypeVar('Answer')

# How RabbitMQ's refusals of a login, a virtual host or an exchange begin.
_REFUSED = ('ACCESS_REFUSED', 'NOT_ALLOWED')
# The errors of a worker that lacks a method. Those of oslo.messaging lose
# their class on the message bus.
_LACKS_METHOD = frozenset({'UnsupportedVersion', 'NoSuchMethod'})
# What oslo.messaging appends to the text of an error, or to that of the error
# of nova-conductor in it.
_TRACEBACK = re.compile(r'\s*\[?[\'"]?Traceback \(most recent call last\)')


class NovaRefused(Exception):
    """A command was refused; the message has the reason."""


def try_soon(
    read: Callable[[], Answer],
    timeout_s: float,
    silent: str = 'nova-conductor',
) -> Answer | NovaRefused:
    """Return what is read from Nova, or why it cannot be read now.

    Nova's RPC tries for ever to reach RabbitMQ, so it has a thread of its own.

    :param timeout_s: seconds to wait at most
    :param silent: who has not answered after this time
    """
    found: list[Answer | NovaRefused] = []

    def try_read() -> None:
        try:
            with translated_conductor():
                found.append(read())
        except Exception as exc:
            found.append(NovaRefused(str(exc)))

    thread = threading.Thread(target=try_read, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else NovaRefused(f'{silent} did not answer')


@contextlib.contextmanager
def translated_conductor() -> Iterator[None]:
    """Translate what oslo.messaging says of nova-conductor.

    That is the id of a message, or a traceback.

    :raises NovaRefused: nova-conductor does not answer, or has failed
    """
    try:
        yield
    except oslo_messaging.MessagingTimeout as exc:
        raise NovaRefused(
            'nova-conductor does not answer within [DEFAULT] '
            'rpc_response_timeout; check that it runs, and transport_url'
        ) from exc
    except Exception as exc:
        if remote_name(exc) is None:
            raise
        raise NovaRefused(
            f'nova-conductor has failed ({_describe_remote(exc)}); see its '
            f'log, and check that its database answers'
        ) from exc


def use_nova_conductor() -> None:
    """Make Nova's objects use nova-conductor, as in a worker.

    :raises errors.ConfigError: ``[DEFAULT] transport_url`` cannot be used
    :raises NovaRefused: RabbitMQ does not answer
    """
    from nova import objects, rpc
    from nova.conductor import rpcapi
    from nova.objects import base

    # All services of Nova use this exchange; the default of oslo.messaging is
    # another one.
    rpc.set_defaults(control_exchange='nova')
    queue_names.use_random_names(CONF)
    with access_errors.translated_transport():
        rpc.init(CONF)
    _check_rabbitmq()
    objects.register_all()
    base.NovaObject.indirection_api = rpcapi.ConductorAPI()


def _check_rabbitmq() -> None:
    """Send one message, because oslo.messaging connects without end.

    :raises NovaRefused: RabbitMQ does not answer
    """
    from ironic_compute.paths import probes

    queue = oslo_messaging.Target(topic='ironic-computectl')
    try:
        probes.connect_to_rabbitmq(queue)
    except Exception as exc:  # Those of kombu and amqp, too.
        raise NovaRefused(
            f'RabbitMQ cannot be used: {str(exc).rstrip(".")}. '
            f'{_cure_of_rabbitmq(exc)}'
        ) from exc


def _cure_of_rabbitmq(exc: Exception) -> str:
    if 'CERTIFICATE_VERIFY_FAILED' in str(exc):
        return (
            'Renew its certificate, or correct [oslo_messaging_rabbit] '
            'ssl_ca_file in nova.conf'
        )
    if any(word in str(exc) for word in _REFUSED):
        return (
            'Correct the user, password and virtual host in [DEFAULT] '
            'transport_url in nova.conf, or give the user its rights: '
            'rabbitmqctl set_permissions'
        )
    return (
        'Check [DEFAULT] transport_url in nova.conf, and whether RabbitMQ runs'
    )


def ask_worker(
    request: Callable[[], Answer], *, no_answer: str, too_old: str
) -> Answer:
    """Return the answer of a host's worker; blocks.

    :param no_answer: a sentence that says who does not answer
    :param too_old: a sentence that says who cannot do what is requested
    :raises NovaRefused: with one of them, or with the worker's own error
    """
    try:
        return request()
    except oslo_messaging.MessagingTimeout as exc:
        raise NovaRefused(no_answer) from exc
    except oslo_messaging.UnsupportedVersion as exc:
        raise NovaRefused(too_old) from exc
    except oslo_messaging.RemoteError as exc:
        is_too_old = exc.exc_type in _LACKS_METHOD
        raise NovaRefused(too_old if is_too_old else failed(exc)) from exc
    except (NovaRefused, oslo_messaging.MessagingException):
        raise
    except Exception as exc:
        raise NovaRefused(failed(exc)) from exc


def failed(exc: Exception) -> str:
    """Return a sentence about an error of a worker, without its traceback.

    oslo.messaging raises Python's and Nova's errors anew, with their class.
    """
    return (
        f'The worker that was asked has failed ({_describe_remote(exc)}), so '
        f'what was requested may be done or not; see its log'
    )


def remote_name(exc: Exception) -> str | None:
    """Return the class of an error of another process; None: of this one.

    oslo.messaging marks those of Nova's modules, and has the traceback in the
    text of all.
    """
    if isinstance(exc, oslo_messaging.RemoteError):
        return str(exc.exc_type)
    name = type(exc).__name__
    if name.endswith('_Remote') or _TRACEBACK.search(_text_of(exc)):
        return name.removesuffix('_Remote')
    return None


def _text_of(exc: Exception) -> str:
    if isinstance(exc, oslo_messaging.RemoteError):
        return str(exc.value)
    return str(exc.args[0]) if exc.args else ''


def _describe_remote(exc: Exception) -> str:
    name = remote_name(exc) or type(exc).__name__
    why, *_ = _TRACEBACK.split(_text_of(exc))
    return f'{name}: {" ".join(why.split())}'
