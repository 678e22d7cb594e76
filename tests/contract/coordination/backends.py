# SPDX-License-Identifier: Apache-2.0
"""The coordination backends under test, and the fake, with one interface."""

import pathlib
from collections.abc import Callable
from typing import Protocol

from hashring import errors
from hashring.clock import SystemClock
from hashring.group import Boot, Group, Member, Traits
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from tests.contract.coordination import servers
from tests.unit.hashring import coordination

# As short as the servers allow: at least 2 s on etcd and 1 s on ZooKeeper.
TERM_S = 3.0


def persist(call: Callable[[], object]) -> None:
    """Repeat a call until it succeeds, as the heartbeat thread does."""
    clock = SystemClock()
    ends_s = clock.now_s() + 30.0
    while True:
        try:
            call()
            return
        except errors.BackendUnavailable:
            assert clock.now_s() < ends_s
            clock.sleep(0.2)


class BackendUnderTest(Protocol):
    """A backend that a test can connect to, stop and start."""

    name: str
    traits: Traits

    def group(self, home: str) -> tuple[Group, Member]:
        """Return a new connection and the record to join with."""
        ...

    def stop(self) -> None: ...

    def start(self) -> None: ...


def _member(home: str, boot: Boot) -> Member:
    return Member(Host(home), boot, machine='here', known=(Host(home),))


class Fake:
    """The fake service of the unit tests, in real time."""

    name = 'fake'

    def __init__(self) -> None:
        self.traits = coordination.ETCD
        clock = SystemClock()
        self._service = coordination.Service(clock.now_s, TERM_S, self.traits)

    def group(self, home: str) -> tuple[Group, Member]:
        boot = new_boot()
        group = coordination.FakeGroup(self._service, boot)
        return group, _member(home, boot)

    def stop(self) -> None:
        self._service.up = False

    def start(self) -> None:
        self._service.up = True


class Tooz:
    """A tooz driver with a server, or with a directory."""

    def __init__(
        self, name: str, url: str, server: servers.Server | None
    ) -> None:
        self.name = name
        self.url = url
        self.server = server
        self.pool = 'group/of a test'
        self.traits = self.group('probe')[0].traits

    def group(self, home: str) -> tuple[Group, Member]:
        boot = new_boot()
        group = Membership(
            self.url, self.pool, Host(home), boot, term_s=TERM_S
        )
        return group, _member(home, boot)

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()

    def start(self) -> None:
        if self.server is not None:
            self.server.start()


def over_folder(folder: pathlib.Path) -> Tooz:
    return Tooz('file', f'file://{folder}', None)
