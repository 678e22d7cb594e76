# SPDX-License-Identifier: Apache-2.0
"""A daemon watches the port of the next one, so that a death is soon logged.

The coordination backend shows that a daemon has died only when its lease has
ended. Its port is silent at once. Therefore each daemon asks the port of the
next one, in the order of home hosts, and logs it if there was no answer twice
in a row. Each daemon is watched by one other, so that the cost of one does not
grow with the pool. While the next one is silent, and thus watches nobody, the
one after it is asked, too.

Only the log depends on this: hosts are adopted when the lease has ended.
"""

import dataclasses
import enum
import threading
from collections.abc import Callable, Collection, Mapping

from oslo_log import log as logging

from hashring.agent_status import AgentStatus
from hashring.clock import Clock
from hashring.group import Boot, Member, MemberState
from hashring.ring import Host
from ironic_compute.agent_port import peers

LOG = logging.getLogger(__name__)

INTERVAL_S = 5.0
# Consecutive questions without an answer until it is logged.
_SILENT_COUNT = 2
# Each daemon that hangs makes a turn longer by a timeout or two; therefore no
# more than these are asked, however many are silent.
_ASKED_MAX = 3
_TIMEOUT_S = 1.5
# Seconds until the next question after a bug.
_RETRY_S = 60.0


class Kind(enum.Enum):
    """What happened to the port of another daemon."""

    SILENT = 'silent'
    """It has not answered for some seconds."""
    ANSWERS = 'answers'
    """It answers again."""
    GONE = 'gone'
    """Its daemon left the group, and it had not answered again."""


@dataclasses.dataclass(frozen=True, slots=True)
class PortEvent:
    """An event that is to be logged.

    :param home: the home host of the daemon
    :param seconds: since the first question without an answer
    """

    kind: Kind
    home: Host
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Silence:
    """The last questions to the port of a daemon had no answer.

    :param since_s: when the first of them was asked (CLOCK_BOOTTIME)
    """

    home: Host
    since_s: float
    count: int = 0
    is_logged: bool = False

    def event(self, kind: Kind, now_s: float) -> PortEvent:
        """Return an event that has happened to this daemon now."""
        return PortEvent(kind, self.home, now_s - self.since_s)

    def is_due(self, status: AgentStatus) -> bool:
        """Return whether it is time to log this silence.

        A daemon that leaves the group ends its port, too. Therefore the
        member list has to have been read since.
        """
        return (
            not self.is_logged
            and self.count >= _SILENT_COUNT
            and status.heartbeat.requested_at_s > self.since_s
        )


class NeighborWatch:
    """Decides which ports are asked, and what is logged.

    Nothing is logged before any port has answered, because a firewall may be
    between the daemons, which is no sign of a death.
    """

    def __init__(self) -> None:
        self._silences: dict[Boot, Silence] = {}
        self._has_answer = False

    def turn(
        self,
        status: AgentStatus,
        now_s: float,
        ask: Callable[[Member], bool],
    ) -> list[PortEvent]:
        """Ask the ports whose turn it is; return what is to be logged.

        :param ask: returns whether the port of a member answers
        """
        if not status.has_lease(now_s):
            # The member list may be old, and the network may be down.
            self._silences = self._logged()
            return []
        answers = self._ask(status, ask)
        self._has_answer |= any(answers.values())
        ended = self._find_ended(status, now_s, answers)
        silent = [
            boot for boot, has_answer in answers.items() if not has_answer
        ]
        self._silences = self._count(status, now_s, silent)
        return [*ended, *self._log_due(status, now_s)]

    def _ask(
        self, status: AgentStatus, ask: Callable[[Member], bool]
    ) -> dict[Boot, bool]:
        """Ask the next daemons until one answers, and those in the log."""
        logged = self._logged()
        answers: dict[Boot, bool] = {}
        for member in _successors(status):
            is_next = (
                len(answers) < _ASKED_MAX
                and not any(answers.values())
                and _is_watched(member, status.me.machine)
            )
            if is_next or member.boot in logged:
                answers[member.boot] = ask(member)
        return answers

    def _find_ended(
        self, status: AgentStatus, now_s: float, answers: Mapping[Boot, bool]
    ) -> list[PortEvent]:
        members = {member.boot for member in status.members()}
        logged = self._logged()
        return [
            *(
                silence.event(Kind.GONE, now_s)
                for boot, silence in logged.items()
                if boot not in members
            ),
            *(
                silence.event(Kind.ANSWERS, now_s)
                for boot, silence in logged.items()
                if answers.get(boot, False)
            ),
        ]

    def _count(
        self, status: AgentStatus, now_s: float, silent: Collection[Boot]
    ) -> dict[Boot, Silence]:
        """Return the silences after these daemons have not answered."""
        before = {
            member.boot: Silence(member.home, now_s)
            for member in status.members()
        } | self._silences
        return {
            boot: dataclasses.replace(
                before[boot], count=before[boot].count + 1
            )
            for boot in silent
        }

    def _log_due(self, status: AgentStatus, now_s: float) -> list[PortEvent]:
        due = {
            boot: silence
            for boot, silence in self._silences.items()
            if self._has_answer and silence.is_due(status)
        }
        self._silences |= {
            boot: dataclasses.replace(silence, is_logged=True)
            for boot, silence in due.items()
        }
        return [each.event(Kind.SILENT, now_s) for each in due.values()]

    def _logged(self) -> dict[Boot, Silence]:
        return {
            b: each for b, each in self._silences.items() if each.is_logged
        }


def _successors(status: AgentStatus) -> list[Member]:
    """Return the other members in order, from this one on and around."""
    home = status.me.home
    # A former agent of this host may still be in the group, with our own URL.
    others = (member for member in status.members() if member.home != home)
    return sorted(others, key=lambda m: (m.home < home, m.home, m.boot))


def _is_watched(member: Member, machine: str) -> bool:
    """Return whether it would be a sign if the port of a member were silent.

    One that stops has published that.
    """
    is_up = member.state is MemberState.UP
    return is_up and peers.is_reachable(member, machine)


def _ask_port(member: Member) -> bool:
    has_answer = peers.answers(member, _TIMEOUT_S)
    if has_answer:  # Else the reason is logged there.
        LOG.debug(
            'The port of the daemon of %(home)s answers', {'home': member.home}
        )
    return has_answer


class NeighborThread:
    """Watches for the life of the process; the main loop never waits for it.

    :param newest_status: returns the newest status that the main loop has
        handed over; None before the first one
    :param ask: returns whether the port of a member answers; may block
    """

    def __init__(
        self,
        newest_status: Callable[[], AgentStatus | None],
        clock: Clock,
        interval_s: float = INTERVAL_S,
        ask: Callable[[Member], bool] = _ask_port,
    ) -> None:
        self._newest_status = newest_status
        self._clock = clock
        self._interval_s = interval_s
        self._ask = ask
        self._watch = NeighborWatch()

    def start(self) -> None:
        """Start the thread; returns at once."""
        threading.Thread(
            target=self._run, name='neighbor-watch', daemon=True
        ).start()

    def _run(self) -> None:
        while True:
            begun_s = self._clock.now_s()
            try:
                self.turn()
            # Even a bug must not end the watch.
            except Exception:
                LOG.exception('The watch over the next daemon failed')
                self._clock.sleep(_RETRY_S)
            spent_s = self._clock.now_s() - begun_s
            self._clock.sleep(max(self._interval_s - spent_s, 0.0))

    def turn(self) -> None:
        """Ask once, and log what is found; blocks for some seconds at most."""
        status = self._newest_status()
        if status is None:
            return
        now_s = self._clock.now_s()
        for event in self._watch.turn(status, now_s, self._ask):
            _log(event)


def _log(event: PortEvent) -> None:
    what = {'home': event.home, 'seconds': event.seconds}
    if event.kind is Kind.SILENT:
        LOG.warning(
            'The port of the daemon of %(home)s has not answered for '
            '%(seconds).0f s: if that daemon has died, another one serves '
            '%(home)s when its lease has ended',
            what,
        )
    elif event.kind is Kind.ANSWERS:
        LOG.info(
            'The port of the daemon of %(home)s answers again after '
            '%(seconds).0f s',
            what,
        )
    else:
        LOG.info(
            'The daemon of %(home)s, whose port has not answered for '
            '%(seconds).0f s, is gone from the group',
            what,
        )
