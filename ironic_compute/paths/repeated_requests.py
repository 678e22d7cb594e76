# SPDX-License-Identifier: Apache-2.0
"""Repeats requests to Neutron, and to Keystone for it, without an answer.

Nova ends a reboot or a build in ERROR if Neutron refuses connections for four
seconds. A daemon that alone does not reach Neutron gives its hosts away half a
minute later, and the daemon that takes them does the request then; so each
request waits long enough for that. If Neutron answers before, the request goes
on here.

A request to Neutron may need a token and Neutron's address from Keystone
first. If Keystone does not answer, both are requested again in the same way.

keystoneauth1 could repeat requests, too (``[neutron] http_retries``). Decision
0025 says why it does not.
"""

import contextlib
import contextvars
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import urllib3
from keystoneauth1 import exceptions as ksa_exceptions
from oslo_log import log as logging

from hashring.clock import Clock

LOG = logging.getLogger(__name__)

# When this daemon has failed for ``half_alive_s``, another one serves the host
# within this time: 10 s for the proof, some 10 s to adopt it, and reserve.
TAKE_OVER_S = 60.0
_PAUSE_S = 3.0
# Answers of a proxy that has not reached the service, or has lost it. Neutron
# has certainly done nothing after the first one only. This matters for a POST,
# which would create a port twice: a second PUT changes nothing, and Nova
# accepts that the port of a second DELETE is gone.
_NOT_DONE = frozenset({503})
_UNCLEAR = frozenset({502, 503, 504})

# keystoneauth1 raises each kind if a service is away. The answers of Neutron
# are no exceptions for it, so an error of HTTP is one of Keystone.
_FAILURES = (
    ksa_exceptions.ConnectionError,
    ksa_exceptions.DiscoveryFailure,
    ksa_exceptions.HttpError,
)

# The reasons for which there was no connection on which a request could be
# sent. A read that fails on an encrypted connection is another SSL error.
_UNCONNECTED = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    ssl.SSLCertVerificationError,
)

# Whether this thread repeats what it sends at present.
_is_nested: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'is_nested', default=False
)
_longest_s: contextvars.ContextVar[float | None] = contextvars.ContextVar(
    'longest_s', default=None
)


@contextlib.contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Let requests of this thread wait for so long only."""
    token = _longest_s.set(seconds)
    try:
        yield
    finally:
        _longest_s.reset(token)


class KeystoneAway(ksa_exceptions.ConnectFailure):
    """Keystone had no answer, so nothing was sent to the service."""


class _Patience:
    """How long one request still waits; begins with its first failure."""

    def __init__(self, clock: Clock, wait_s: float) -> None:
        longest_s = _longest_s.get()
        self._clock = clock
        self._wait_s = wait_s if longest_s is None else longest_s
        self._give_up_s: float | None = None

    def pause(self, why: object) -> bool:
        """Block until the next try; return False at once if there is none."""
        now_s = self._clock.now_s()
        is_first = self._give_up_s is None
        if self._give_up_s is None:
            self._give_up_s = now_s + self._wait_s
        if now_s + _PAUSE_S > self._give_up_s:
            return False
        if is_first:
            LOG.warning(
                'A request to Neutron is repeated for %(seconds)d s, because '
                'it had no answer: %(error)s',
                {'seconds': self._wait_s, 'error': why},
            )
        self._clock.sleep(_PAUSE_S)
        return True


@attrs.define(eq=False, repr=False, slots=False)
class RepeatedRequests:
    """Sends the requests of Nova's session with Neutron; any thread may call.

    :param wait_s: seconds for which a request is repeated after its first
        failure
    """

    _clock: Clock
    _wait_s: float

    def call(self, method: str, send: Callable[[], Any]) -> Any:
        """Send a request and return its response; send it again if needed.

        Blocks while Neutron does not answer, until the time is up. The last
        failure is then returned or raised, as if it were the only one.

        :param send: sends the request once
        :raises keystoneauth1.exceptions.ConnectionError: there is no answer,
            and the time is up, or the request must not be sent twice
        """
        if _is_nested.get():
            return send()
        patience = _Patience(self._clock, self._wait_s)

        def may_repeat(exc: ksa_exceptions.ClientException) -> bool:
            return method != 'POST' or _is_unsent(exc)

        while True:
            response = _send_until_answered(send, patience, may_repeat)
            status = response.status_code
            is_safe = status in (_NOT_DONE if method == 'POST' else _UNCLEAR)
            if not is_safe or not patience.pause(f'HTTP {status}'):
                return response

    def look_up(self, send: Callable[[], Any]) -> Any:
        """Ask Keystone for something and return it; ask again if needed.

        Blocks while Keystone does not answer, until the time is up. Within
        a request to Neutron it asks once, because that is repeated itself.

        :param send: sends all requests that are needed, once
        """
        if _is_nested.get():
            return send()
        patience = _Patience(self._clock, self._wait_s)
        return _send_until_answered(send, patience, lambda exc: True)


def _send_until_answered(
    send: Callable[[], Any],
    patience: _Patience,
    may_repeat: Callable[[ksa_exceptions.ClientException], bool],
) -> Any:
    """Send a request, again and again while its service does not answer.

    :param may_repeat: whether a request that failed so may be sent again
    """
    while True:
        try:
            return _send_nested(send)
        except _FAILURES as exc:
            if not (_is_away(exc) and may_repeat(exc) and patience.pause(exc)):
                raise


def _send_nested(send: Callable[[], Any]) -> Any:
    token = _is_nested.set(True)
    try:
        return send()
    finally:
        _is_nested.reset(token)


def _is_away(exc: ksa_exceptions.ClientException) -> bool:
    """Return whether a service did not answer, which may change."""
    if isinstance(exc, ksa_exceptions.HttpError):
        return exc.http_status in _UNCLEAR
    return True


def _is_unsent(exc: ksa_exceptions.ClientException) -> bool:
    """Return whether nothing of a request was sent to Neutron.

    keystoneauth1 raises the same errors if a connection breaks, and keeps that
    of requests as its context, whose argument is urllib3's with a reason.
    """
    if isinstance(exc, KeystoneAway) or not isinstance(
        exc, ksa_exceptions.ConnectionError
    ):
        return True
    (broken, *_) = getattr(exc.__context__, 'args', ()) or (None,)
    reason = getattr(broken, 'reason', None)
    if isinstance(reason, urllib3.exceptions.SSLError):
        (reason, *_) = reason.args
    return isinstance(reason, _UNCONNECTED)
