# SPDX-License-Identifier: Apache-2.0
"""A real agent as a program, with workers that only print their state.

Prints one JSON line, with the time, for each event of a worker, so that a
test can compare the lines of several agents: the gate of a host must not be
open at two agents at once.
"""

import json
import logging
import os
import queue
import signal
import sys
from collections.abc import Sequence

from hashring.agent import Agent
from hashring.clock import SystemClock
from hashring.membership import Membership, new_boot
from hashring.opts import Timing
from hashring.ring import Host
from hashring.state_dir import StateDir
from hashring.workers import (
    ServiceFacts,
    ServicesRead,
    WorkerEvent,
    WorkerExited,
    WorkerServing,
    WorkerView,
)

TIMING = Timing(
    lease_term_s=3.0,
    lease_margin_s=1.0,
    adopt_step_s=0.5,
    restart_grace_s=6.0,
    drain_timeout_s=5.0,
    loop_interval_s=0.2,
    settle_s=1.0,
)
FINE = ServiceFacts(mapped=True, disabled=False, exists=True)


class TalkingWorkers:
    """`hashring.workers.Workers` that prints and starts no process."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self._live: dict[Host, int] = {}
        self._agreed: tuple[Host, ...] = ()

    def start(
        self, host: Host, tenure: int, has_servers: bool = False
    ) -> None:
        self._live[host] = tenure
        self._say(start=host, tenure=tenure)
        self._events.put(WorkerServing(host, tenure))
        self._events.put(ServicesRead({Host(f'c{n}'): FINE for n in (1, 2)}))

    def stop(self, host: Host) -> None:
        tenure = self._live.get(host, 0)
        self.kill(host)
        self._events.put(WorkerExited(host, 0, tenure=tenure))

    def kill(self, host: Host) -> None:
        if self._live.pop(host, None) is not None:
            self._say(end=host)

    def deliver_view(self, view: WorkerView) -> None:
        for host in self._live:
            opens_s = max(view.opens_s.get(host, 0.0), self._clock.now_s())
            if opens_s < view.deadline_s:
                self._say(open=host, since=opens_s, until=view.deadline_s)
        if view.agreed_since_s is not None and view.ring != self._agreed:
            self._agreed = view.ring
            self._say(agreed=list(view.ring))

    def events(self, timeout_s: float) -> Sequence[WorkerEvent]:
        found: list[WorkerEvent] = []
        try:
            found.append(self._events.get(timeout=timeout_s))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            return found

    def _say(self, **line: object) -> None:
        print(json.dumps({'at': self._clock.now_s(), **line}), flush=True)


def main(url: str, pool: str, home: str, folder: str) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    clock, state = SystemClock(), StateDir(folder, pool)
    state.open()
    agent = Agent(
        membership=Membership(
            url, pool, Host(home), new_boot(), term_s=TIMING.lease_term_s
        ),
        workers=TalkingWorkers(clock),
        home=Host(home),
        timing=TIMING,
        clock=clock,
        saved_state=state,
    )
    signal.signal(signal.SIGTERM, lambda *_: agent.request_stop())
    return agent.run()


if __name__ == '__main__':
    result = main(*sys.argv[1:])
    sys.stdout.flush()
    # The daemon ends like this, too, because a driver's exit handler waits for
    # its threads, which may wait for a backend that is away.
    os._exit(result)
