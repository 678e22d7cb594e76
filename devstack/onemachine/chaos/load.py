# SPDX-License-Identifier: Apache-2.0
"""A steady load of user requests: boots, reboots, deletes, stops, starts."""

import collections
import contextlib
import dataclasses
import enum
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from keystoneauth1.exceptions import ClientException
from openstack.exceptions import SDKException

from onemachine import content
from onemachine.progress import CloudError, print_line, wait_until

_LOOK_S = 1.0
# Seconds after which a build that no nova-conductor has received is lost,
# because the RPC time-out is 60 s and nova-api sends the build once.
_NOT_RECEIVED_S = 120.0


class Kind(enum.StrEnum):
    """The kind of a user's request."""

    BOOT = 'boot'
    REBOOT = 'reboot'
    DELETE = 'delete'
    STOP = 'stop'
    START = 'start'


USUAL = (Kind.REBOOT, Kind.REBOOT, Kind.DELETE)
WITH_STOPS = (*USUAL, Kind.STOP, Kind.START)
# The status of a server when a request has ended, and its name in the history
# of the server.
_WANTED = {
    Kind.BOOT: ('ACTIVE', 'create'),
    Kind.REBOOT: ('ACTIVE', 'reboot'),
    Kind.STOP: ('SHUTOFF', 'stop'),
    Kind.START: ('ACTIVE', 'start'),
}


class End(enum.StrEnum):
    """The outcome of a request."""

    PENDING = 'not yet'
    DONE = 'done'
    ERROR = 'in error'
    REFUSED = 'refused by the API'
    GONE = 'its server was deleted meanwhile'
    UNHEARD = 'lost between nova-api and nova-conductor'


@dataclasses.dataclass(slots=True)
class Request:
    """One request of a user."""

    kind: Kind
    server: str
    asked_s: float
    ended_s: float = 0.0
    end: End = End.PENDING
    detail: str = ''

    def finish(self, end: End, detail: str = '') -> None:
        """Record the outcome."""
        self.end, self.detail, self.ended_s = end, detail, time.time()

    @property
    def took_s(self) -> float:
        """Seconds that the user waited."""
        return (self.ended_s or time.time()) - self.asked_s


class Load:
    """Sends random requests, one at a time for each server.

    :param interval_s: seconds between two requests, on average
    :param population: the number of servers, roughly
    :param kinds: the kinds of requests while there are so many servers; the
        more often one is in it, the more often it is sent
    """

    def __init__(
        self,
        contents: content.Content,
        rng: random.Random,
        *,
        interval_s: float = 2.0,
        population: int = 30,
        kinds: Sequence[Kind] = USUAL,
    ) -> None:
        self.requests: list[Request] = []
        # Users also delete servers that are not ACTIVE yet.
        self.is_impatient = False
        self._content = contents
        self._rng = rng
        self._interval_s = interval_s
        self._population = population
        self._kinds = kinds
        self._idle: set[str] = set()  # Servers without a request under way.
        self._stopped: set[str] = set()  # The same, of those that are stopped.
        self._names_count = 0
        self._asking = threading.Event()
        self._one_request = threading.Lock()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._asker: threading.Thread | None = None

    def start(self) -> None:
        """Start; the first boots are sent at once."""
        self._asking.set()
        self.follow()
        self._asker = self._run(self._ask_on)

    def follow(self) -> None:
        """Watch the requests until they end."""
        self._run(self._follow_on)

    def _run(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def stop(
        self,
        not_received: Callable[[Sequence[str]], Collection[str]],
        timeout_s: float = 600.0,
    ) -> None:
        """Send no more requests, and wait until all have ended.

        :param not_received: returns those of some servers that no
            nova-conductor has received; no compute host can end their builds
        """
        self._asking.clear()
        ends_s = time.monotonic() + timeout_s
        if self._asker is not None:
            # A request that is being sent is not in the list yet.
            self._asker.join(timeout_s)
        while self.pending() and time.monotonic() < ends_s:
            time.sleep(_LOOK_S)
            self._give_up(not_received)
        self._over.set()
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def paused(self, timeout_s: float = 300.0) -> Iterator[None]:
        """Send nothing while the context is open; before it, all has ended.

        :raises CloudError: a request did not end in time
        """
        with self._one_request:
            wait_until('the requests to end', self._is_quiet, timeout_s)
            yield

    def _is_quiet(self) -> bool:
        return not self.pending()

    def _give_up(
        self, not_received: Callable[[Sequence[str]], Collection[str]]
    ) -> None:
        old = {
            r.server: r
            for r in self.pending()
            if r.kind is Kind.BOOT and r.took_s > _NOT_RECEIVED_S
        }
        for server in not_received(list(old)) if old else ():
            old[server].finish(End.UNHEARD)

    def pending(self) -> list[Request]:
        """Return the requests that have not ended."""
        return [r for r in self.requests if r.end is End.PENDING]

    def ended(self, *ends: End) -> list[Request]:
        """Return the requests with this outcome."""
        return [r for r in self.requests if r.end in ends]

    def summary(self) -> str:
        """Return one line with the numbers of requests and outcomes."""
        ends = [f'{r.kind} {r.end}' for r in self.requests]
        counts = sorted(collections.Counter(ends).items())
        return ', '.join(f'{count} {what}' for what, count in counts)

    # Requests

    def _ask_on(self) -> None:
        while self._asking.is_set():
            try:
                with self._one_request:
                    self._ask(self._choose())
            except Exception as exc:
                print_line(f'A user could not ask: {exc}')
            time.sleep(self._rng.expovariate(1 / self._interval_s))

    def _choose(self) -> Kind:
        known_count = len(self._idle) + len(self._stopped)
        if known_count + len(self.pending()) < self._population:
            return Kind.BOOT
        return self._rng.choice(self._kinds)

    def _ask(self, kind: Kind) -> None:
        if kind is Kind.BOOT:
            self.boot()
        elif kind is Kind.DELETE and self.is_impatient and self._booting():
            self.delete(self._rng.choice(self._booting()))
        else:
            able = self._stopped if kind is Kind.START else self._idle
            if able:
                self._ask_about(kind, self._rng.choice(sorted(able)))

    def _ask_about(self, kind: Kind, server: str) -> None:
        ask = {
            Kind.REBOOT: self.reboot,
            Kind.DELETE: self.delete,
            Kind.STOP: self.stop_server,
            Kind.START: self.start_server,
        }[kind]
        ask(server)

    def _booting(self) -> list[str]:
        """Return the servers that are booting and not being deleted."""
        deleted = {r.server for r in self.requests if r.kind is Kind.DELETE}
        return [
            r.server
            for r in self.pending()
            if r.kind is Kind.BOOT and r.server not in deleted
        ]

    def boot_at_once(self, names: Sequence[str]) -> None:
        """Request servers, all at the same time."""
        asked_s = time.time()
        for server in self._content.create_servers(names):
            self.requests.append(Request(Kind.BOOT, server.id, asked_s))

    def boot(self, host: str | None = None) -> Request:
        """Request a server."""
        self._names_count += 1
        request = Request(Kind.BOOT, '', time.time())
        name = f'load-{int(time.time()) % 100000}-{self._names_count}'
        try:
            (server,) = self._content.create_servers([name], host)
            request.server = server.id
        except (SDKException, ClientException) as exc:
            request.finish(End.REFUSED, str(exc))
        self.requests.append(request)
        return request

    def reboot(self, server: str) -> Request:
        """Request a hard reboot."""
        compute = self._content.cloud.compute
        return self._request(
            Kind.REBOOT, server, lambda: compute.reboot_server(server, 'HARD')
        )

    def delete(self, server: str) -> Request:
        """Request the deletion of a server."""
        compute = self._content.cloud.compute
        return self._request(
            Kind.DELETE, server, lambda: compute.delete_server(server)
        )

    def stop_server(self, server: str) -> Request:
        """Request that a server is powered off."""
        compute = self._content.cloud.compute
        return self._request(
            Kind.STOP, server, lambda: compute.stop_server(server)
        )

    def start_server(self, server: str) -> Request:
        """Request that a server is powered on."""
        compute = self._content.cloud.compute
        return self._request(
            Kind.START, server, lambda: compute.start_server(server)
        )

    def _request(self, kind: Kind, server: str, ask: Any) -> Request:
        able = self._stopped if kind is Kind.START else self._idle
        able.discard(server)
        request = Request(kind, server, time.time())
        try:
            ask()
        except (SDKException, ClientException) as exc:
            request.finish(End.REFUSED, str(exc))
            able.add(server)
        self.requests.append(request)
        return request

    # Following

    def _follow_on(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                asked = self.pending()
                found = {s.id: s for s in self._content.servers()}
                for request in asked:
                    self._follow(request, found)
            except (SDKException, ClientException, CloudError):
                continue  # The API is unavailable for a while.

    def _follow(self, request: Request, found: Mapping[str, Any]) -> None:
        server = found.get(request.server)
        if server is None:
            is_deleted = request.kind is Kind.DELETE
            request.finish(End.DONE if is_deleted else End.GONE)
        elif server.status == 'ERROR' and server.task_state is None:
            fault = server.fault or {}
            request.finish(End.ERROR, str(fault.get('message')))
        elif request.kind is Kind.DELETE or server.task_state is not None:
            return
        elif server.status == _WANTED[request.kind][0]:
            self._finish(request)
        elif request.kind is not Kind.BOOT:
            self._finish_failed(request)

    def _finish_failed(self, request: Request) -> None:
        """End a request after which the server is not as it should be."""
        action = self._newest(request)
        if action is not None and action.message:
            request.finish(End.ERROR, action.message)

    def _finish(self, request: Request) -> None:
        is_stop = request.kind is Kind.STOP
        if request.kind is not Kind.BOOT:
            action = self._newest(request)
            if action is not None and action.message:
                request.finish(End.ERROR, action.message)
        if request.end is End.PENDING:
            request.finish(End.DONE)
        (self._stopped if is_stop else self._idle).add(request.server)

    def _newest(self, request: Request) -> Any:
        """Return the newest action of this kind in a server's history."""
        actions = self._content.cloud.compute.server_actions(request.server)
        name = _WANTED[request.kind][1]
        return next((a for a in actions if a.action == name), None)
