# SPDX-License-Identifier: Apache-2.0
"""Traffic: notes which of the worker's own requests had an answer.

An error is an answer, except for a rejected token (401): without a token,
nothing can be done there. The answers 502 to 504 may come from a proxy or from
the service, so they count as neither; ``probes`` finds out.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import attrs
import oslo_messaging
from keystoneauth1 import exceptions as ksa_exceptions

from hashring.clock import Clock
from hashring.paths import Path
from ironic_compute import errors
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    PLACEMENT,
    RABBITMQ,
    PathHealth,
)
from resource_tracker.meter import Meter

_UNCLEAR = frozenset({502, 503, 504})
_UNAUTHORIZED = 401
# keystoneauth1 raises the second one if Keystone is away.
_NO_ANSWER = (
    ksa_exceptions.ConnectionError,
    ksa_exceptions.DiscoveryFailure,
)


@attrs.define(eq=False, repr=False, slots=False)
class IronicTraffic:
    """Notes the requests to Ironic; any thread may call.

    :param measured: the context manager of another meter, see
        ``IronicReader.set_meter``
    """

    _health: PathHealth
    _clock: Clock
    _measured: Callable[[str], AbstractContextManager[None]]

    @contextlib.contextmanager
    def request(self, action: str) -> Iterator[None]:
        """Note how the request in the body ends."""
        began_s = self._clock.now_s()
        try:
            with self._measured(action):
                yield
        except errors.IronicUnavailable as exc:
            _note(self._health, IRONIC, exc.http_status, str(exc), began_s)
            raise
        except errors.ConfigError:
            raise
        except errors.IronicComputeError:
            self._health.note_answer(IRONIC)
            raise
        self._health.note_answer(IRONIC)


@attrs.define(eq=False, repr=False, slots=False)
class PlacementTraffic:
    """Notes the requests to Placement and passes all on to another meter.

    A request waits up to a minute for its answer; Placement is probed before.
    """

    _health: PathHealth
    _clock: Clock
    _meter: Meter

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that the request in the body waits for its answer."""
        with self._meter.waiting(), self._health.waiting(PLACEMENT):
            yield

    def count_request(
        self, method: str, what: str, status: str, seconds: float
    ) -> None:
        """Count a request to Placement; see ``resource_tracker.meter``."""
        self._meter.count_request(method, what, status, seconds)
        _note(
            self._health,
            PLACEMENT,
            int(status) if status.isdecimal() else None,
            f'{method} {what}: no answer that can be used (status {status})',
            self._clock.now_s() - seconds,
        )

    def count_report(self, seconds: float) -> None:
        """Count a change that was written to Placement."""
        self._meter.count_report(seconds)

    def count_drift(self, count: int) -> None:
        """Count providers that an audit found changed by others."""
        self._meter.count_drift(count)


@attrs.define(eq=False, repr=False, slots=False)
class ConductorTraffic:
    """Notes the calls of nova-conductor; any thread may call.

    A call that waits for long may have lost its connection to RabbitMQ, which
    is probed then.
    """

    _health: PathHealth
    _clock: Clock

    def call(self, send: Callable[[], Any]) -> Any:
        """Call ``send``, note whether there was an answer, and return it.

        Errors other than a time-out note nothing: an error that nova-conductor
        returned is not told from one of this process.
        """
        began_s = self._clock.now_s()
        try:
            with self._health.waiting(RABBITMQ):
                answer = send()
        except oslo_messaging.MessagingTimeout as exc:
            self._health.note_failure(CONDUCTOR, str(exc), began_s)
            raise
        self._health.note_answer(CONDUCTOR)
        return answer


@attrs.define(eq=False, repr=False, slots=False)
class SessionTraffic:
    """Notes the requests that Nova's own clients send over HTTP.

    :param path: the service; a failure of Keystone is one of this path, too
    """

    _path: Path
    _health: PathHealth
    _clock: Clock

    def call(self, send: Callable[[], Any]) -> Any:
        """Call ``send``, note whether there was an answer, and return it."""
        began_s = self._clock.now_s()
        try:
            with self._waiting(began_s):
                answer = send()
        except ksa_exceptions.HttpError as exc:
            self._note(exc.http_status, str(exc), began_s)
            raise
        self._note(answer.status_code, answer.reason or '', began_s)
        return answer

    def look_up(self, send: Callable[[], Any]) -> Any:
        """Call ``send``, which asks Keystone only; note a failure.

        An answer of Keystone does not show that the service is reached.
        """
        began_s = self._clock.now_s()
        try:
            with self._waiting(began_s):
                return send()
        except ksa_exceptions.Unauthorized as exc:
            self._note(_UNAUTHORIZED, str(exc), began_s)
            raise

    @contextlib.contextmanager
    def _waiting(self, began_s: float) -> Iterator[None]:
        """Note that a request waits, and that it had no answer."""
        try:
            with self._health.waiting(self._path):
                yield
        except _NO_ANSWER as exc:
            self._note(None, str(exc), began_s)
            raise

    def _note(self, status: int | None, why: str, began_s: float) -> None:
        _note(self._health, self._path, status, why, began_s)


def _note(
    health: PathHealth,
    path: Path,
    http_status: int | None,
    why: str,
    began_s: float,
) -> None:
    """Note a request by its HTTP status; None: there was no answer."""
    if http_status is None or http_status == _UNAUTHORIZED:
        health.note_failure(path, why, began_s)
    elif http_status not in _UNCLEAR:
        health.note_answer(path)
