# SPDX-License-Identifier: Apache-2.0
"""The heartbeat thread: joins, publishes, beats, and reads the list.

One thread, started by the agent and ended by it; nobody waits for it. It
may hang in the backend for as long as that pleases: meanwhile the agent
goes on, sees its deadline pass, and stops by itself. What the thread
learned last is read with `state()`, never waited for.
"""

import dataclasses
import threading

from oslo_log import log as logging

from hashring import errors
from hashring.adoption import NOBODY, View
from hashring.clock import Clock
from hashring.group import Group, Member
from hashring.lease import Beat, Lease, Verdict
from hashring.opts import Timing
from hashring.ring import Host

LOG = logging.getLogger(__name__)

REJOIN_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What the last heartbeats told; a value, to be read whole."""

    lease: Lease
    view: View = NOBODY
    lost: frozenset[Host] = frozenset()
    asked_at_s: float = 0.0
    """When the list of `view` was asked for."""
    read_at_s: float = 0.0
    verdict: Verdict | None = None
    trouble: str | None = None
    """Why the backend does not answer, while it does not."""
    neighbours: tuple[str, ...] = ()
    """Other groups with somebody in them, as seen once after the start."""


class HeartbeatThread:
    """Keeps this agent in its group.

    :param me: how this agent describes itself at first.
    """

    def __init__(
        self, group: Group, me: Member, timing: Timing, clock: Clock
    ) -> None:
        self._group = group
        self._clock = clock
        self._interval_s = timing.heartbeat_interval_s
        # By then the entries of those who died before us have expired.
        self._look_around_s = clock.now_s() + 2 * timing.lease_term_s
        self._looked_around = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._connected = False
        self._joined = False
        self._wished = (me, 0)
        self._published: Member | None = None
        self._failures_count = 0  # In a row.
        self._said = False  # The operator knows of them.
        self._state = State(Lease(timing.lease_term_s, timing.lease_margin_s))
        self._thread = threading.Thread(
            target=self._run, name='heartbeat', daemon=True
        )

    # ---- for the agent

    def start(self) -> None:
        self._thread.start()

    def state(self) -> State:
        """What is known now; never blocks."""
        return self._state

    def wish(self, me: Member, epoch: int) -> bool:
        """Say how we want to be seen, soon.

        :param epoch: the lease's epoch that `me.serving` is true for. In
            any other one nothing is claimed to be served.
        :returns: whether exactly this has been published already.
        """
        with self._lock:
            changed = self._wished[0] != me
            self._wished = (me, epoch)
            published = self._published == me
        if changed:
            self._wake.set()
        return published

    @property
    def hurried(self) -> bool:
        """The next beat should not wait for its time."""
        return self._wake.is_set()

    def end(self, timeout_s: float) -> None:
        """Beat no more; wait for the thread at most so long."""
        self._ended = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # ---- the thread

    def _run(self) -> None:
        while not self._ended:
            sent_s = self._clock.now_s()
            self.beat()
            spent_s = self._clock.now_s() - sent_s
            # Out of the group we are useless: be quicker to return.
            pause_s = self._interval_s if self._joined else REJOIN_S
            self._wake.wait(max(0.1, pause_s - spent_s))

    def beat(self) -> None:
        """Do what one turn of the thread does; raises nothing."""
        self._wake.clear()
        try:
            self._enter()
            self._publish()
            self._exchange()
            self._look_around()
        except errors.NotInGroup as exc:
            self._unseen(self._clock.now_s())
            LOG.debug('Not in the group: %(why)s', {'why': exc})
        except errors.BackendUnavailable as exc:
            self._trouble(str(exc))
        # The thread must outlive any mistake, ours included.
        except Exception as exc:
            LOG.exception('The heartbeat failed')
            self._trouble(repr(exc))

    def _enter(self) -> None:
        if not self._connected:
            self._group.connect()
            self._connected = True
        if self._joined:
            return
        with self._lock:
            me = self._wished[0]
        # What we served before is served again only when it was proven.
        me = dataclasses.replace(me, serving=())
        sent_s = self._clock.now_s()
        self._group.join(me)
        self._joined = True
        self._published = me
        lease = self._state.lease.joined(sent_s)
        self._state = dataclasses.replace(self._state, lease=lease)

    def _publish(self) -> None:
        with self._lock:
            me, epoch = self._wished
        if epoch != self._state.lease.epoch:
            me = dataclasses.replace(me, serving=())
        if me != self._published:
            self._group.publish(me)
            self._published = me

    def _exchange(self) -> None:
        sent_s = self._clock.now_s()
        self._group.heartbeat()
        members = self._group.members()
        lost = self._group.lost()
        returned_s = self._clock.now_s()
        mine = [m for m in members if m.boot == self._group.boot]
        if mine != [self._published]:
            # An older record of us came late, and is to be replaced.
            self._published = None
        beat = Beat(sent_s, returned_s, shown=bool(mine))
        lease, verdict = self._state.lease.after(beat)
        self._joined = verdict is not Verdict.UNSEEN
        if self._said:
            LOG.info('The coordination backend answers again')
        self._said = False
        self._failures_count = 0
        self._state = dataclasses.replace(
            self._state,
            lease=lease,
            view=View(members),
            lost=lost,
            asked_at_s=sent_s,
            read_at_s=returned_s,
            verdict=verdict,
            trouble=None,
        )

    def _look_around(self) -> None:
        """See who else is on this backend: once, soon after the start.

        Later it is for those who come then to look.
        """
        is_due = self._clock.now_s() >= self._look_around_s
        if not is_due or self._looked_around or not self._joined:
            return
        neighbours = self._group.neighbours()
        self._looked_around = True
        self._state = dataclasses.replace(self._state, neighbours=neighbours)

    def _unseen(self, now_s: float) -> None:
        lease, verdict = self._state.lease.after(Beat(now_s, now_s, False))
        self._joined = False
        self._state = dataclasses.replace(
            self._state, lease=lease, verdict=verdict
        )

    def _trouble(self, why: str) -> None:
        self._failures_count += 1
        # One lost request is nothing; the second in a row is news, once.
        # At start the first one is.
        news_count = 2 if self._connected else 1
        if self._failures_count >= news_count and not self._said:
            self._said = True
            LOG.warning(
                'The coordination backend does not answer, trying on: %(why)s',
                {'why': why},
            )
        self._state = dataclasses.replace(self._state, trouble=why)
