# SPDX-License-Identifier: Apache-2.0
"""Probes: light requests on a path that had no answer for a while.

A path with enough traffic of its own is not probed. A connection that is "up"
proves nothing, so each probe is a request and needs an answer.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import attrs
import nova.conf
import oslo_messaging
from nova import baserpc, service_auth
from nova import context as nova_context
from nova import rpc as nova_rpc
from nova import utils as nova_utils

from hashring.clock import Clock
from hashring.paths import Path
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    NEUTRON,
    PLACEMENT,
    RABBITMQ,
    PathHealth,
)

# A request gives up after so many seconds, and an answer that takes longer is
# counted as none until it has come.
TIMEOUT_S = 5
# While a path fails, here or for another agent, it is probed so often.
RETRY_S = 5.0
# Its second answer is requested so soon after the first one, so that the end
# of a failure is known soon; see ``path_health`` for the least distance.
_CONFIRM_S = 1.5
# oslo.messaging would try to connect for ever, in spite of the time-out. One
# retry is needed, because a connection is found broken by the first try.
RETRIES_COUNT = 1
_RABBITMQ_SILENCE_S = 10.0
_ONE_NETWORK = '/v2.0/networks?fields=id&limit=1'
# No valid token, or a proxy before Neutron that does not reach it.
_NOT_REACHED = frozenset({401, 502, 503, 504})
# A request to Placement or Neutron that has waited for so long is followed by
# a probe, because it may wait for a minute.
_PATIENCE_S = 2.0
# A path whose own traffic is so late is probed.
_SLACK_S = 2.0


def _always() -> bool:
    """Return True."""
    return True


def _never(path: Path) -> bool:
    """Return False."""
    return False


@attrs.define(eq=False, repr=False, slots=False)
class Probe:
    """Probes one path; :meth:`try_probe` is for one thread of its own.

    :param send: sends one request and blocks until its answer; raises if
        there is none
    :param silence_s: seconds without an answer after which a probe is sent;
        None: only while the path fails, or while a request waits for long
    :param is_expected: whether an answer can be expected at present
    :param is_doubted: whether a path fails for another agent
    :param patience_s: seconds without an answer after which the path is
        probed while a request waits
    """

    path: Path
    silence_s: float | None
    _send: Callable[[], object]
    _health: PathHealth
    _clock: Clock
    _is_expected: Callable[[], bool] = _always
    _is_doubted: Callable[[Path], bool] = _never
    _patience_s: float = RETRY_S

    def __attrs_post_init__(self) -> None:
        self._began_s: float | None = None
        self._last_s = -math.inf  # When the last probe was sent.

    def try_probe(self) -> float:
        """Send a probe if one is due; blocks until its answer.

        :returns: seconds until the next call
        """
        now_s = self._clock.now_s()
        is_answered = self._is_due() and self._is_expected() and self._probe()
        if self._needs_answers():
            # A probe may have waited for its time-out already.
            spent_s = self._clock.now_s() - now_s
            return _CONFIRM_S if is_answered else max(RETRY_S - spent_s, 1.0)
        if self.silence_s is None:
            return RETRY_S
        left_s = self.silence_s - self._health.silent_s(self.path)
        # The path may begin to fail meanwhile.
        return min(max(left_s, 1.0), RETRY_S)

    def _needs_answers(self) -> bool:
        return self._health.needs_answers(self.path)

    def is_suspect(self) -> bool:
        """Return whether a probe should be sent at once, for a new reason.

        :meth:`try_probe` may have asked for a longer wait before. Any thread
        may call.
        """
        is_idle = self._began_s is None and not self._needs_answers()
        return is_idle and self._is_doubtful()

    def note_overdue(self) -> None:
        """Note a failure if the present probe has had no answer for long.

        Any thread may call; the request itself may block for minutes.
        """
        began_s = self._began_s
        if began_s is None or self._clock.now_s() - began_s <= TIMEOUT_S:
            return
        self._note_failure(f'no answer for {TIMEOUT_S} s', began_s)

    def _is_due(self) -> bool:
        if self._needs_answers():
            return True
        if self._is_doubtful():
            return True
        silent_s = self._health.silent_s(self.path)
        return self.silence_s is not None and silent_s >= self.silence_s

    def _is_doubtful(self) -> bool:
        """Return whether a request waits, or another agent, for an answer."""
        if self._clock.now_s() - self._last_s < RETRY_S:
            return False
        silent_s = self._health.silent_s(self.path)
        waits_s = min(silent_s, self._health.waits_s(self.path))
        is_doubted = self._is_doubted(self.path) and silent_s >= RETRY_S
        return is_doubted or waits_s >= self._patience_s

    def _probe(self) -> bool:
        """Send a probe; return whether it had an answer."""
        self._began_s = self._last_s = began_s = self._clock.now_s()
        try:
            self._send()
        except Exception as exc:
            self._note_failure(str(exc) or type(exc).__name__, began_s)
            return False
        else:
            self._health.note_answer(self.path)
            return True
        finally:
            self._began_s = None

    def _note_failure(self, why: str, began_s: float) -> None:
        # It may have been the lease that ended, and with it the answers.
        if self._is_expected():
            self._health.note_failure(self.path, why, began_s)


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeCalls:
    """Calls of the worker's own clients; each sends one probe and blocks."""

    rabbitmq: Callable[[], None]
    new_connection: Callable[[], None]
    """Sends RabbitMQ a message over a new connection, and closes it."""
    ironic: Callable[[], None]
    placement: Callable[[], None]
    neutron: Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class ProbePace:
    """Seconds between two requests that a worker sends anyway."""

    conductor_s: float
    """The worker reports its host up through nova-conductor."""
    ironic_s: float
    """The worker reads the changes of Ironic's nodes."""
    others_s: float | None = None
    """To Placement and Neutron; None: while nothing changes, nothing."""


def make_probes(
    calls: ProbeCalls,
    health: PathHealth,
    clock: Clock,
    pace: ProbePace,
    receives_rpc: Callable[[], bool],
    is_doubted: Callable[[Path], bool],
) -> tuple[Probe, ...]:
    """Return the probes of a worker.

    :param receives_rpc: whether the worker's own queue is read at present
    :param is_doubted: whether a path fails for another agent
    """

    def probe(
        path: Path,
        silence_s: float | None,
        send: Callable[[], object],
        is_expected: Callable[[], bool] = _always,
        patience_s: float = RETRY_S,
    ) -> Probe:
        return Probe(
            path,
            silence_s,
            send,
            health,
            clock,
            is_expected,
            is_doubted,
            patience_s,
        )

    probe_soon = functools.partial(probe, patience_s=_PATIENCE_S)

    def check_rabbitmq() -> None:
        # A network may break most new connections and leave open ones alone:
        # the probe's own connection is open, and requests need new ones.
        is_waiting = health.waits_s(RABBITMQ) >= TIMEOUT_S
        if is_waiting or health.needs_answers(RABBITMQ):
            calls.new_connection()
        calls.rabbitmq()

    return (
        probe(RABBITMQ, _RABBITMQ_SILENCE_S, check_rabbitmq, receives_rpc),
        probe(CONDUCTOR, pace.conductor_s + _SLACK_S, ping_conductor),
        probe(IRONIC, pace.ironic_s + _SLACK_S, calls.ironic),
        # Without traffic nobody needs them: the first request that fails, or
        # waits for long, begins the probes.
        probe_soon(PLACEMENT, pace.others_s, calls.placement),
        probe_soon(NEUTRON, pace.others_s, calls.neutron),
    )


def ping_neutron() -> None:
    """Read one network over a new connection; blocks for some seconds.

    Nova's own session is not used: it may have an open connection that works
    while most new ones are broken. A token that is still valid is used.

    :raises Exception: there is no answer, or no valid token
    """
    group = nova.conf.neutron.NEUTRON_GROUP
    auth = service_auth.get_service_auth_plugin(group)
    adapter = nova_utils.get_ksa_adapter('network', ksa_auth=auth)
    answer = adapter.get(_ONE_NETWORK, timeout=TIMEOUT_S, connect_retries=0)
    if answer.status_code in _NOT_REACHED:
        answer.raise_for_status()


def connect_to_rabbitmq(queue: oslo_messaging.Target) -> None:
    """Send a message over a new connection; blocks for some seconds.

    :param queue: a queue of this process; RabbitMQ confirms the message, and
        nobody waits for its answer
    :raises Exception: RabbitMQ is not reached; errors of kombu come through
    """
    transport = nova_rpc.create_transport(nova_rpc.get_transport_url())
    try:
        client = oslo_messaging.get_rpc_client(transport, queue)
        client.prepare(retry=RETRIES_COUNT).cast({}, 'hello')
    finally:
        transport.cleanup()


def ping_conductor() -> None:
    """Send a message to any nova-conductor and back; blocks for some seconds.

    :raises oslo_messaging.MessagingException: there is no answer
    """
    client = baserpc.BaseAPI(topic='conductor').client
    client.prepare(timeout=TIMEOUT_S, retry=RETRIES_COUNT).call(
        nova_context.get_admin_context(), 'ping', arg='path'
    )
