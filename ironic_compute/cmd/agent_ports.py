# SPDX-License-Identifier: Apache-2.0
"""What the ports of the daemons answer, for commands that only show.

A command reads the ports of all daemons of a pool at once; one on a loopback
address only on its own machine. A port that is off, late or unreachable leaves
its answer out, and no command fails because of it.
"""

import collections
import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from hashring.clock import Clock, SystemClock
from hashring.group import Boot, Member, MemberState
from hashring.ring import Host
from ironic_compute.agent_port import peers
from ironic_compute.agent_port.problems import Alert, Problem

FINDINGS, NODES = '/api/v1/findings', peers.PATH
RING = peers.RING_WITHOUT_PORTS

# Seconds to wait for one port, and for all together. A daemon waits half a
# second for a worker that does not answer.
_PORT_MAX_S = 1.5
_ALL_MAX_S = 2.0
_THREADS_COUNT = 32


@dataclasses.dataclass(frozen=True, slots=True)
class ProblemAnswers:
    """What the ports of daemons have answered about problems.

    :param problems: those that each daemon sees
    :param answered: the daemons whose port has answered, also with an error
    """

    problems: Mapping[Boot, Sequence[Problem]]
    answered: frozenset[Boot]


def read_ports(members: Iterable[Member], path: str) -> dict[Boot, Any]:
    """Return the JSON that the ports of these daemons answer for a path.

    Blocks for two seconds at most. A daemon that does not answer is missing.
    """
    return _parse(_read_texts(members, path))


def _read_texts(members: Iterable[Member], path: str) -> dict[Boot, bytes]:
    machine = socket.gethostname()
    here = (m for m in members if peers.is_reachable(m, machine))
    return _ask_all(here, path, SystemClock())


def read_answers(
    members: Iterable[Member], path: str, clock: Clock
) -> dict[Boot, Any]:
    """Return the JSON that the ports answer for a path; blocks.

    :param members: daemons whose port this machine can reach
    """
    return _parse(_ask_all(members, path, clock))


def _parse(texts: Mapping[Boot, bytes]) -> dict[Boot, Any]:
    found: dict[Boot, Any] = {}
    for boot, text in texts.items():
        with contextlib.suppress(ValueError, RecursionError):
            found[boot] = json.loads(text)
    return found


def _ask_all(
    members: Iterable[Member], path: str, clock: Clock
) -> dict[Boot, bytes]:
    """Return what the ports answer for a path; empty if it is an error."""
    waiting = collections.deque(members)
    found: dict[Boot, bytes] = {}

    def read_some() -> None:
        # Another thread may take the last one first.
        with contextlib.suppress(IndexError):
            while True:
                member = waiting.popleft()
                text = peers.get(member, path, _PORT_MAX_S)
                if text is not None:
                    found[member.boot] = text

    ends_s = clock.now_s() + _ALL_MAX_S
    # As daemons, because a name server that hangs must not keep the command.
    threads = [
        threading.Thread(target=read_some, daemon=True)
        for _ in range(min(len(waiting), _THREADS_COUNT))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(ends_s - clock.now_s(), 0.0))
    waiting.clear()
    return dict(found)  # Threads that are late may still add to the other.


def read_problems(members: Iterable[Member]) -> ProblemAnswers:
    """Return the problems that each daemon sees, if its port answers."""
    texts = _read_texts(members, FINDINGS)
    return ProblemAnswers(
        {boot: parse_problems(each) for boot, each in _parse(texts).items()},
        frozenset(texts),
    )


def silent_hosts(
    members: Iterable[Member], answers: Container[Boot]
) -> frozenset[Host]:
    """Return the hosts of daemons whose port should answer and does not.

    That of a daemon which has published that it stops need not.

    :param answers: the daemons whose port has answered, also with an error
    """
    machine = socket.gethostname()
    return frozenset(
        host
        for member in members
        if member.state is MemberState.UP
        and peers.is_reachable(member, machine)
        and member.boot not in answers
        for host in member.serving
    )


def parse_problems(answer: Any) -> list[Problem]:
    """Return the problems in an answer, without those that are malformed."""
    found = []
    for row in answer if isinstance(answer, list) else ():
        # A daemon of a later release may have other alerts.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found.append(Problem.parse(row))
    return found


def problems_of_host(
    host: Host,
    members: Iterable[Member],
    answers: Mapping[Boot, Iterable[Problem]],
) -> list[Problem]:
    """Return what the daemons say about a host, each problem once.

    If the daemon that serves the host answers, the others do not count: they
    know less, and later.
    """
    members = tuple(members)
    server = next((m for m in members if host in m.serving), None)
    if server is not None and server.boot in answers:
        asked = [server]
    else:
        # Its own daemon first, which knows why it does not serve the host.
        asked = sorted(members, key=lambda m: (m.home != host, m.home))
    found: dict[object, Problem] = {}
    for member in asked:
        for problem in answers.get(member.boot, ()):
            # Another daemon that serves the host has published that since.
            is_over = server is not None and (
                problem.alert is Alert.HOST_UNSERVED and member is not server
            )
            if problem.host == host and not is_over:
                found.setdefault((problem.alert, problem.check), problem)
    return list(found.values())
