# SPDX-License-Identifier: Apache-2.0
"""The rounds in which unfinished work is looked for, for a whole tenure.

The first comes soon after RPC is served. Each needs the lease; an error ends
its own part of one round only, and the next round looks again.
"""

import math
import threading
from collections.abc import Callable

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.gate import Gate
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from ironic_compute.recovery.lost_builds import LostBuilds
from ironic_compute.recovery.stray_instances import StrayInstances

LOG = logging.getLogger(__name__)

# Messages that waited in the queue come first: they know more than the row.
_FIRST_LOOK_S = 5.0


class RecoveryLoop:
    """One thread that looks at servers, nodes and builds in turn.

    :param interval_s: between two rounds
    :param queue_s: after having been served for so long, no message can
        wait in the queue any more that was there at first
    :param lost_s: between two looks for builds that nobody began
    :param anew_s: between two looks at all servers on held nodes
    """

    def __init__(
        self,
        resume: InterruptedTasks,
        strays: StrayInstances,
        lost: LostBuilds,
        gate: Gate,
        clock: Clock,
        *,
        interval_s: float,
        queue_s: float,
        lost_s: float,
        anew_s: float,
    ) -> None:
        self._resume = resume
        self._strays = strays
        self._lost = lost
        self._gate = gate
        self._clock = clock
        self._interval_s = interval_s
        self._queue_s = queue_s
        self._lost_s = lost_s
        self._anew_s = anew_s
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the rounds; RPC is served from now on."""
        threading.Thread(target=self._keep, name='upkeep', daemon=True).start()

    def stop(self) -> None:
        """Begin no round more."""
        self._stopping.set()

    def _keep(self) -> None:
        served_s = anew_s = self._clock.now_s()
        lost_s = -math.inf
        wait_s = _FIRST_LOOK_S
        while not self._stopping.wait(wait_s):
            wait_s = self._interval_s
            if not self._gate.is_open():
                # Messages may have waited meanwhile.
                served_s = self._clock.now_s()
                wait_s = _FIRST_LOOK_S
                continue
            now_s = self._clock.now_s()
            if now_s - anew_s >= self._anew_s:
                anew_s = now_s
                self._strays.forget_checked()
            self._look(self._resume.check)
            self._look(self._strays.check)
            is_due = now_s - lost_s >= self._lost_s
            if is_due and now_s - served_s >= self._queue_s:
                lost_s = now_s
                self._look(self._lost.check)

    def _look(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as exc:
            LOG.warning(
                'Could not look for unfinished work and will try again: '
                '%(error)s',
                {'error': exc},
            )
