# SPDX-License-Identifier: Apache-2.0
"""Watches which hosts are served, by pings over RPC, all the time.

A ping goes to the host's own queue and waits there like any other request,
so its answer proves that the host is served. The state of the services in
nova-api is watched as well.
"""

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import oslo_messaging
from oslo_config import cfg

from onemachine import content
from onemachine.layout import Layout
from onemachine.progress import CloudError

_PING_TIMEOUT_S = 3
_PING_INTERVAL_S = 0.5
_LOOK_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of a ping, with the time of the ping."""

    asked_s: float
    came_s: float


class Pings:
    """Pings hosts in threads, and keeps the times of the answers."""

    def __init__(self, layout: Layout, hosts: Sequence[str]) -> None:
        # oslo.messaging reads some of its options only from this object.
        conf = cfg.CONF
        conf([], default_config_files=[str(layout.conf('nova'))])
        oslo_messaging.set_transport_defaults('nova')
        transport = oslo_messaging.get_rpc_transport(conf, layout.broker)
        target = oslo_messaging.Target(
            topic='compute', namespace='baseapi', version='1.0'
        )
        self._client = oslo_messaging.get_rpc_client(transport, target)
        self._over = threading.Event()
        self._answers: dict[str, list[_Answer]] = {h: [] for h in hosts}

    def start(self) -> None:
        """Start the threads."""
        for host in self._answers:
            threading.Thread(
                target=self._ping_on, args=(host,), daemon=True
            ).start()

    def stop(self) -> None:
        """Stop the threads."""
        self._over.set()

    def first_answer_s(self, host: str, after_s: float) -> float | None:
        """Return when the first ping after ``after_s`` was answered."""
        answers = self._answers[host]
        return next((a.came_s for a in answers if a.asked_s > after_s), None)

    def await_answer(
        self, host: str, after_s: float, timeout_s: float
    ) -> float:
        """Wait for the answer to a ping after ``after_s``; return its delay.

        :raises CloudError: nothing serves the host
        """
        ends_s = time.time() + timeout_s
        while time.time() < ends_s:
            answered_s = self.first_answer_s(host, after_s)
            if answered_s is not None:
                return answered_s - after_s
            time.sleep(0.2)
        raise CloudError(f'{host} was not served within {timeout_s:.0f} s')

    def longest_silence_s(self, host: str, from_s: float) -> float:
        """Return the longest time without an answer since ``from_s``."""
        came_s = [a.came_s for a in self._answers[host]]
        times = [from_s, *(s for s in came_s if s >= from_s), time.time()]
        pairs = itertools.pairwise(times)
        return max((b - a for a, b in pairs), default=0.0)

    def _ping_on(self, host: str) -> None:
        client = self._client.prepare(server=host, timeout=_PING_TIMEOUT_S)
        while not self._over.wait(_PING_INTERVAL_S):
            asked_s = time.time()
            with contextlib.suppress(oslo_messaging.MessagingException):
                client.call({}, 'ping', arg=host)
                self._answers[host].append(_Answer(asked_s, time.time()))


class ServiceWatch:
    """Reads the state of the services in nova-api."""

    def __init__(self, contents: content.Content) -> None:
        self.down: dict[str, int] = {}
        self._content = contents
        self._over = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._look_on, daemon=True).start()

    def stop(self) -> None:
        """Stop the thread."""
        self._over.set()

    def _look_on(self) -> None:
        while not self._over.wait(_LOOK_S):
            services: dict[str, Any] = {}
            with contextlib.suppress(Exception):  # The API may be unavailable.
                services = self._content.services()
            for host, service in services.items():
                if service.state != 'up':
                    self.down[host] = self.down.get(host, 0) + 1


@contextlib.contextmanager
def watched(pings: Pings, services: ServiceWatch) -> Iterator[None]:
    """Watch while the context is open."""
    pings.start()
    services.start()
    try:
        yield
    finally:
        pings.stop()
        services.stop()
