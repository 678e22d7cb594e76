# SPDX-License-Identifier: Apache-2.0
"""Records over time which agent serves each host, and counts the moves."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

_LOOK_S = 1.0


def agents_of(serving: Mapping[str, str]) -> dict[str, str]:
    """Return host -> home host of the agent that serves it.

    :param serving: host -> name and pid of its process; a stock nova-compute
        serves its own host
    """
    return {
        host: host
        if by.startswith('stock ')
        else by.split()[0].removeprefix('agent-')
        for host, by in serving.items()
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Change:
    """The agent that serves each host from a moment on."""

    at_s: float
    agents: Mapping[str, str]


class ServingHistory:
    """The agents of all hosts, from the first look on."""

    def __init__(self) -> None:
        self._changes: list[_Change] = []

    def add(self, at_s: float, agents: Mapping[str, str]) -> None:
        """Add what was seen at a moment, in seconds since 1970."""
        if not self._changes or self._changes[-1].agents != agents:
            self._changes.append(_Change(at_s, dict(agents)))

    @property
    def agents(self) -> Mapping[str, str]:
        """The agents at the last look."""
        return self._changes[-1].agents if self._changes else {}

    @property
    def changed_s(self) -> float:
        """When another process was last seen to serve a host."""
        return self._changes[-1].at_s if self._changes else 0.0

    def moves(self, host: str) -> list[str]:
        """Return the agents that a host moved to, in turn.

        A host that is served by nobody for a while, and then by the same
        agent, has not moved.
        """
        seen: list[str] = []
        for change in self._changes:
            agent = change.agents.get(host)
            if agent is not None and agent not in seen[-1:]:
                seen.append(agent)
        return seen[1:]

    def by_other_s(self, host: str, after_s: float) -> float | None:
        """Return when an agent of another host was first seen to serve it."""
        return next(
            (
                change.at_s
                for change in self._changes
                if change.at_s >= after_s
                and change.agents.get(host, host) != host
            ),
            None,
        )

    def all_home(self, hosts: Sequence[str]) -> bool:
        """Return whether each host is served by its own agent."""
        return all(self.agents.get(host) == host for host in hosts)


@contextlib.contextmanager
def recorded(
    serving: Callable[[], Mapping[str, str]],
) -> Iterator[ServingHistory]:
    """Record while the context is open.

    :param serving: returns host -> name and pid of its process
    """
    history, over = ServingHistory(), threading.Event()

    def look() -> None:
        at_s = time.time()
        history.add(at_s, agents_of(serving()))

    def look_on() -> None:
        while not over.wait(_LOOK_S):
            # A process may end while its line in /proc is read.
            with contextlib.suppress(OSError):
                look()

    look()
    thread = threading.Thread(target=look_on, daemon=True)
    thread.start()
    try:
        yield history
    finally:
        over.set()
        thread.join()
