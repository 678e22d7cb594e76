# SPDX-License-Identifier: Apache-2.0
"""The heartbeat thread: joins the group, renews the lease, reads the members.

The agent starts one such thread and reads its last result with `state()`,
which never blocks. The thread itself may hang in a request to the backend;
meanwhile the agent's main loop goes on and sees the end of the lease.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Mapping

from oslo_log import log as logging

from hashring import errors, events
from hashring.adoption import NOBODY, View
from hashring.clock import Clock
from hashring.group import Group, Member
from hashring.lease import Beat, Lease, Verdict
from hashring.opts import Timing
from hashring.probation import Probation
from hashring.ring import Host

LOG = logging.getLogger(__name__)

# Seconds between two attempts while this agent is not in the group, or its
# last heartbeat failed. Servers that have lost one of them elect a leader in a
# few seconds, and a lease should not end for that.
RETRY_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class HeartbeatState:
    """The lease, and the results of the last heartbeat; immutable."""

    lease: Lease
    view: View = NOBODY
    lost: frozenset[Host] = frozenset()
    requested_at_s: float = 0.0
    """When the member list of `view` was requested (CLOCK_BOOTTIME)."""
    read_at_s: float = 0.0
    """When `view` had been read, and `lost` had not (CLOCK_BOOTTIME)."""
    verdict: Verdict | None = None
    failure: str | None = None
    """The error of the last heartbeat; None if it succeeded."""
    other_groups: Mapping[str, tuple[Member, ...]] | None = None
    """The members of other groups, as read two terms after this agent has
    joined and then each term until it is admitted; None: not read yet since
    the lease was interrupted last."""

    @property
    def is_joining(self) -> bool:
        """Whether the first heartbeat has neither succeeded nor failed."""
        return self.verdict is None and self.failure is None

    def lease_status(self) -> events.LeaseStatus:
        """Return the part that decides which hosts this agent serves."""
        return events.LeaseStatus(
            deadline_s=self.lease.deadline_s,
            epoch=self.lease.epoch,
            view=self.view,
            lost=self.lost,
            read_at_s=self.read_at_s,
        )


class HeartbeatThread:
    """Keeps this agent in its group.

    The agent's main thread calls `start`, `state`, `note_turn`, `set_member`
    and `end`.

    :param me: the record of this agent to publish first.
    """

    def __init__(
        self, group: Group, me: Member, timing: Timing, clock: Clock
    ) -> None:
        self._group = group
        self._clock = clock
        self._interval_s = timing.heartbeat_interval_s
        self._term_s = timing.lease_term_s
        # When the other groups are read next, in the epoch of the lease for
        # which that was set.
        self._read_others_at_s, self._read_others_epoch = 0.0, 0
        # When the agent's main loop has last turned, and when this thread last
        # looked.
        self._turned_s = self._looked_s = clock.now_s()
        self._is_loop_hung = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._connected = False
        self._joined = False
        self._wanted = (me, 0)
        self._published: Member | None = None
        self._failures_count = 0  # Consecutive failures.
        self._is_failure_logged = False
        self._probation: Probation | None = None
        self._state = HeartbeatState(
            Lease(timing.lease_term_s, timing.lease_margin_s)
        )
        self._thread = threading.Thread(
            target=self._run, name='heartbeat', daemon=True
        )

    # ---- for the agent

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def state(self) -> HeartbeatState:
        """Return the result of the last heartbeat; never blocks."""
        return self._state

    def note_turn(self) -> None:
        """Record that the main loop turns; never blocks."""
        self._turned_s = self._clock.now_s()
        if self._is_loop_hung:
            self._wake.set()

    def set_member(self, me: Member, epoch: int) -> bool:
        """Set the record of this agent, to be published soon; never blocks.

        :param epoch: the epoch of the lease in which ``me.serving`` is
            valid. In any other epoch no host is published as served.
        :returns: whether exactly this record has been published already.
        """
        with self._lock:
            changed = self._wanted[0] != me
            self._wanted = (me, epoch)
            published = self._published == me
        if changed:
            self._wake.set()
        return published

    @property
    def is_urgent(self) -> bool:
        """Whether a changed record makes the next heartbeat due at once."""
        return self._wake.is_set()

    def end(self, timeout_s: float) -> None:
        """Stop the thread; wait at most ``timeout_s`` seconds for its end."""
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
            self._wake.wait(max(0.1, self.pause_s - spent_s))

    @property
    def pause_s(self) -> float:
        """Seconds from the sending of the last heartbeat to the next one."""
        is_well = self._joined and self._state.failure is None
        return self._interval_s if is_well else RETRY_S

    def beat(self) -> None:
        """Join, publish, and send one heartbeat; never raises."""
        self._wake.clear()
        self._judge_loop()
        if self._is_loop_hung:
            return
        try:
            if self._pass_probation():
                self._renew()
        except errors.NotInGroup as exc:
            self._mark_not_in_group(self._clock.now_s())
            LOG.debug('Not in the group: %(why)s', {'why': exc})
        except errors.BackendUnavailable as exc:
            self._note_failure(str(exc))
        # Even a bug must not end the thread.
        except Exception as exc:
            LOG.exception('The heartbeat failed')
            self._note_failure(repr(exc))

    def _renew(self) -> None:
        """Do all that belongs to one heartbeat.

        :raises BackendUnavailable: something failed. If the backend has
            refused the record, or the list of groups, the lease is renewed.
        """
        self._join_group()
        refusal = self._publish()
        self._send_heartbeat()
        if refusal is not None:
            raise refusal
        self._read_other_groups()
        if self._is_failure_logged:
            LOG.info(
                'The coordination backend %(name)s answers again',
                {'name': self._group.backend_name},
            )
        self._is_failure_logged = False
        self._failures_count = 0

    def _judge_loop(self) -> None:
        """Find out whether the main loop has not turned for a lease term.

        It blocks on the disk or on the log, for instance. Its workers may not
        act any more, so others must get its hosts. After the whole process
        stood still, or began slowly, the loop turns as soon as this thread.
        """
        now_s, was_hung = self._clock.now_s(), self._is_loop_hung
        stood_still = now_s - self._looked_s > self._term_s
        self._looked_s = now_s
        silent_s = now_s - self._turned_s
        self._is_loop_hung = silent_s > self._term_s and not stood_still
        if self._is_loop_hung and not was_hung:
            LOG.error(
                'The main loop of this daemon has not turned for '
                '%(silent_s)d s, so no heartbeat is sent and others adopt '
                'its hosts',
                {'silent_s': silent_s},
            )

    def _pass_probation(self) -> bool:
        """Return whether this agent may renew its lease; see `probation`."""
        if self._connected and self._failures_count:
            self._read_anew()
        if self._probation is None:
            return True
        now_s = self._clock.now_s()
        self._probation = self._probation.after_answer(now_s)
        if not self._probation.has_ended(now_s):
            return False
        self._probation = None
        return True

    def _read_anew(self) -> None:
        """Read the members over a connection that no other request uses.

        If most new connections are reset, one that works is luck, and a
        heartbeat over it would renew a lease that cannot be kept.
        """
        self._group.reconnect()
        # An empty backend answers, too.
        with contextlib.suppress(errors.NotInGroup):
            self._group.members()
        self._group.reconnect()

    def _join_group(self) -> None:
        if not self._connected:
            self._group.connect()
            self._connected = True
        if self._joined:
            return
        with self._lock:
            me = self._wanted[0]
        # An agent that joins again publishes that it serves no host, because
        # it must first prove that it has kept its locks.
        me = dataclasses.replace(me, serving=())
        sent_s = self._clock.now_s()
        self._group.join(me)
        self._joined = True
        self._published = me
        lease = self._state.lease.joined(sent_s)
        self._state = dataclasses.replace(self._state, lease=lease)

    def _publish(self) -> errors.RequestRefused | None:
        """Publish the record of this agent if it has changed.

        :returns: why the backend has refused it, if the lease may be renewed
            all the same
        """
        with self._lock:
            me, epoch = self._wanted
        if epoch != self._state.lease.epoch:
            me = dataclasses.replace(me, serving=())
        if me == self._published:
            return None
        try:
            self._group.publish(me)
        except errors.RequestRefused as exc:
            if self._may_keep_former(me):
                return exc
            raise
        self._published = me
        return None

    def _may_keep_former(self, me: Member) -> bool:
        """Return whether the lease may be renewed with the former record.

        An etcd without space refuses all records, and renews all leases; so
        does a folder on a full disk. But no other agent must leave a host to
        this one that it does not serve.
        """
        former = self._published
        return (
            former is not None
            and self._state.lease.held(self._clock.now_s())
            and set(former.serving) <= set(me.serving)
            and (me.wants_home or not former.wants_home)
        )

    def _send_heartbeat(self) -> None:
        sent_s = self._clock.now_s()
        self._group.heartbeat()
        members = self._group.members()
        read_at_s = self._clock.now_s()
        lost = self._group.lost_locks()
        returned_s = self._clock.now_s()
        mine = [m for m in members if m.boot == self._group.boot]
        if mine != [self._published]:
            # A request that was delayed on its way has replaced this agent's
            # record by an older one, so publish it again.
            self._published = None
        beat = Beat(sent_s, returned_s, is_listed=bool(mine))
        lease, verdict = self._state.lease.after(beat)
        self._joined = verdict is not Verdict.NOT_LISTED
        is_same = lease.epoch == self._read_others_epoch
        self._state = dataclasses.replace(
            self._state,
            lease=lease,
            other_groups=self._state.other_groups if is_same else None,
            view=View(members),
            lost=lost,
            requested_at_s=sent_s,
            read_at_s=read_at_s,
            verdict=verdict,
            failure=None,
        )

    def _read_other_groups(self) -> None:
        """Read the other groups on this backend, until this one is admitted.

        An agent that starts later makes the same check. The first read comes
        two terms after this agent has joined, or joined again: the entries of
        dead agents have then expired, and after an outage of the backend the
        others have joined as well.
        """
        now_s, epoch = self._clock.now_s(), self._state.lease.epoch
        if epoch != self._read_others_epoch:
            self._read_others_epoch = epoch
            self._read_others_at_s = now_s + 2 * self._term_s
        is_due = now_s >= self._read_others_at_s
        if not is_due or self._wanted[0].is_admitted or not self._joined:
            return
        other_groups = self._group.other_groups()
        self._read_others_at_s = now_s + self._term_s
        self._state = dataclasses.replace(
            self._state, other_groups=other_groups
        )

    def _mark_not_in_group(self, now_s: float) -> None:
        lease, verdict = self._state.lease.after(Beat(now_s, now_s, False))
        self._joined = False
        self._state = dataclasses.replace(
            self._state, lease=lease, verdict=verdict
        )

    def _note_failure(self, why: str) -> None:
        self._failures_count += 1
        lease = self._state.lease
        if self._probation is not None:
            self._probation = self._probation.after_failure()
        elif lease.base_s is not None and not lease.held(self._clock.now_s()):
            self._probation = Probation()
        # Before the first connection the first failure is logged. Later the
        # second consecutive one is, because a single failure does no harm.
        log_count = 2 if self._connected else 1
        if self._failures_count >= log_count and not self._is_failure_logged:
            self._is_failure_logged = True
            LOG.warning(
                'The coordination backend %(name)s does not answer, trying '
                'on: %(why)s',
                {'name': self._group.backend_name, 'why': why},
            )
        self._state = dataclasses.replace(self._state, failure=why)
