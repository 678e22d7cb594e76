# SPDX-License-Identifier: Apache-2.0
"""Messages between simulated workers about what one of them has read.

Real are PoolReads and the feed. A message may be lost or late.
"""

from typing import Any

from hashring.ring import Host
from ironic_compute.feed.shared_reads import PoolReads
from ironic_compute.paths.path_health import RABBITMQ
from tests.simulation.broker import Message
from tests.simulation.loops import LoopTask

LOSS = 0.05
LATENESS = 0.1
PROMPT_S = 0.003
LATE_S = (1.0, 6.0, 30.0)


def start(worker: Any, *, loses: bool) -> PoolReads:
    """Start the PoolReads of a worker, and return it.

    :param loses: messages may be lost or late
    """

    def send(host: Host, message: Message) -> None:
        if worker.machine.paths.loses_requests(RABBITMQ):
            return
        late_s = PROMPT_S
        rng = worker.world.rng
        if loses and rng.random() < LOSS:
            return
        if loses and rng.random() < LATENESS:
            late_s = rng.choice(LATE_S)
        worker.kernel.later(
            late_s, lambda: worker.world.nova.broker.cast(host, message)
        )

    reads = PoolReads(
        worker.host,
        lambda: worker.pool.ring_status().ring.hosts,
        lambda: worker.pool.known,
        lambda host, read: send(host, Message('changes', '', changes=read)),
        lambda host, part: send(host, Message('listed', '', part=part)),
        worker.intervals.delta_s,
        lambda *loop: LoopTask(worker, *loop),
    )
    reads.start()
    return reads
