# SPDX-License-Identifier: Apache-2.0
"""Path observer: runs the probes, and sends the states of paths to the agent.

The agent tells operators which services fail here, and which daemons reach
them. If it cannot serve and another agent can, it gives its hosts away.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.paths import Path, PathState
from ironic_compute.loop_thread import LoopThread, NewLoop
from ironic_compute.paths.path_health import PathHealth
from ironic_compute.paths.probes import Probe

LOG = logging.getLogger(__name__)

_ROUND_S = 1.0
# A message to the agent may be lost, so it is repeated.
_SEND_INTERVAL_S = 15.0
# A service that is being restarted is not worth a warning. The path counts as
# failing for some time after the last failure; that time is left out.
_WARN_AFTER_S = 10.0
# Own requests come first after the start; a probe is often needless then.
_FIRST_PROBE_S = 5.0


@attrs.define(eq=False, repr=False, slots=False)
class PathObserver:
    """Owns a thread for each probe, and one that reports.

    A probe may block for minutes, so no other thread waits for it.

    :param send: sends the states of all paths to the agent; does not block
    :param is_doubted: whether a path fails for another agent, which waits for
        a proof that it works here
    :param new_loop: makes what runs a probe again and again
    """

    _health: PathHealth
    _probes: Sequence[Probe]
    _clock: Clock
    _send: Callable[[dict[Path, PathState]], None]
    _is_doubted: Callable[[Path], bool]
    _new_loop: NewLoop = LoopThread

    def __attrs_post_init__(self) -> None:
        self._sent_s = -math.inf
        self._sent: dict[Path, object] = {}
        # Path -> since when it fails, if a warning was logged.
        self._warned: dict[Path, float] = {}
        self._loops = {
            probe: self._new_loop(
                f'path-{probe.path}', probe.try_probe, _FIRST_PROBE_S
            )
            for probe in self._probes
        }
        self._reports = self._new_loop('paths', self.report, 0.0)

    def start(self) -> None:
        """Start all threads."""
        for loop in (*self._loops.values(), self._reports):
            loop.start()

    def stop(self) -> None:
        """Stop all threads; a probe that has begun goes on."""
        for loop in (*self._loops.values(), self._reports):
            loop.stop()

    def report(self) -> float:
        """Log and send what has changed; send it now and then anyway.

        Also wakes the probes that should not wait for their next turn.

        :returns: seconds until the next call
        """
        for probe, loop in self._loops.items():
            probe.note_overdue()
            if probe.is_suspect():
                loop.wake()
        states = self._health.states()
        self._log(states)
        now_s = self._clock.now_s()
        news = {path: self._news(path, s) for path, s in states.items()}
        if news != self._sent or now_s - self._sent_s >= _SEND_INTERVAL_S:
            self._sent, self._sent_s = news, now_s
            self._send(states)
        return _ROUND_S

    def _news(self, path: Path, state: PathState) -> object:
        """Return what the agent must know soon of a path."""
        answered_s = state.answered_s if self._is_doubted(path) else None
        fails = state.failing_since_s is not None
        return fails, state.failed_s, answered_s

    def _log(self, states: Mapping[Path, PathState]) -> None:
        now_s = self._clock.now_s()
        for path, state in states.items():
            since_s = state.failing_since_s
            if since_s is None:
                if path in self._warned:
                    _log_answers(path, now_s - self._warned.pop(path))
            elif path not in self._warned and _lasts_s(state) >= _WARN_AFTER_S:
                self._warned[path] = since_s
                _warn(path, now_s - since_s, state.why)


def _lasts_s(state: PathState) -> float:
    """Return the seconds from the first failure to the last one."""
    return (state.failed_s or 0.0) - (state.failing_since_s or 0.0)


def _warn(path: Path, seconds: float, why: str) -> None:
    LOG.warning(
        'This worker has not reached %(path)s for %(seconds)d s: %(why)s',
        {'path': path, 'seconds': seconds, 'why': why},
    )


def _log_answers(path: Path, seconds: float) -> None:
    LOG.info(
        'This worker reaches %(path)s again after %(seconds)d s',
        {'path': path, 'seconds': seconds},
    )
