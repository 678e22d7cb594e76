# SPDX-License-Identifier: Apache-2.0
"""Scenarios that no request may be lost in: bursts of boots, faults in pairs.

``storm`` causes two faults at once, again and again, while users boot, reboot
and delete servers, often before a server is ACTIVE. ``bursts`` boots forty
servers at once, again and again, without any fault.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence

from onemachine.chaos import load as loads
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import Stage
from onemachine.progress import print_line, step, wait_until

BURST_COUNT = 40
# Seconds after which each host has been adopted, or has its own agent again.
_CALM_S = 45.0


def bursts(stage: Stage) -> None:
    """Boot forty servers at once, and delete them, several times."""
    failed: list[str] = []
    with stage.act('bursts', HOSTS):
        for number in range(stage.plan.rounds):
            load = stage.idle_load()
            names = [f'burst-{number}-{n}' for n in range(BURST_COUNT)]
            with step(f'Burst {number + 1} of {stage.plan.rounds}'):
                load.boot_at_once(names)
                load.stop(stage.evidence.not_received)
            failed += [r.detail for r in load.ended(loads.End.ERROR)]
            stage.report.figure('requests', load.summary())
            stage.clear()
        stage.report.none('boots in ERROR', failed)


def storm(stage: Stage) -> None:
    """Two faults at once, chosen by the seed, under load; several times."""
    with (
        stage.act('storm', HOSTS),
        stage.under_load(interval_s=0.5, population=40) as load,
    ):
        load.is_impatient = True
        for number in range(stage.plan.rounds):
            fault = stage.rng.choice(FAULTS)
            with step(
                f'Round {number + 1} of {stage.plan.rounds}: {fault.__doc__}'
            ):
                fault(stage, stage.rng)
            _restore(stage)
    stage.report_requests(load)
    failed = [r for r in load.requests if r.end is loads.End.ERROR]
    stage.report.none('requests in error', [r.detail for r in failed])


def _restore(stage: Stage) -> None:
    """Start the agents that have ended; wait until all hosts are served."""
    missing = sorted(set(HOSTS) - set(stage.running.hosts()))
    if missing:
        stage.start(missing)
    wait_until(
        'all hosts are served',
        lambda: set(HOSTS) <= stage.running.serving().keys(),
        180,
    )
    time.sleep(_CALM_S / 3)


def _kill_two(stage: Stage, rng: random.Random) -> None:
    """Two agents are killed at once."""
    stage.running.kill(rng.sample(HOSTS, 2))
    time.sleep(rng.uniform(0.0, _CALM_S))


def _kill_adopter(stage: Stage, rng: random.Random) -> None:
    """An agent is killed, and its adopter while it adopts."""
    victim = rng.choice(HOSTS)
    stage.running.kill([victim])
    with contextlib.suppress(Exception):
        wait_until(
            f'{victim} is adopted',
            lambda: victim in stage.running.serving(),
            60,
        )
    adopter = _agent_of(stage, victim)
    if adopter is not None:
        stage.running.kill([adopter])
    time.sleep(rng.uniform(0.0, _CALM_S))


def _agent_of(stage: Stage, host: str) -> str | None:
    """Return the home host of the agent that serves a host."""
    by = stage.running.serving().get(host, '')
    return by.split()[0].removeprefix('agent-') if by else None


def _freeze_and_kill(stage: Stage, rng: random.Random) -> None:
    """An agent is frozen for 4 to 45 s, and another one killed."""
    frozen, killed = rng.sample(HOSTS, 2)
    stage.running.pause([frozen])
    stage.running.kill([killed])
    time.sleep(rng.uniform(4.0, 45.0))
    stage.running.resume([frozen])


def _kill_worker(stage: Stage, rng: random.Random) -> None:
    """A worker is killed, its agent lives."""
    _signal_worker(stage, rng, signal.SIGKILL)
    time.sleep(rng.uniform(0.0, _CALM_S))


def _freeze_worker(stage: Stage, rng: random.Random) -> None:
    """A worker is frozen for 5 to 70 s, its agent lives."""
    pid = _signal_worker(stage, rng, signal.SIGSTOP)
    time.sleep(rng.uniform(5.0, 70.0))
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _signal_worker(
    stage: Stage, rng: random.Random, number: signal.Signals
) -> int | None:
    _, *children = stage.running.family(rng.choice(HOSTS)) or [0]
    if not children:
        return None
    pid = rng.choice(children)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return pid


def _stop_and_kill(stage: Stage, rng: random.Random) -> None:
    """An agent is stopped, and another one killed."""
    stopped, killed = rng.sample(HOSTS, 2)
    stop = threading.Thread(target=lambda: stage.running.stop([stopped]))
    stop.start()
    time.sleep(rng.uniform(0.0, 5.0))
    stage.running.kill([killed])
    stop.join()


def _freeze_backend(stage: Stage, rng: random.Random) -> None:
    """The coordination backend is frozen for 1 to 33 s, an agent killed."""
    name = f'coordination-{stage.cloud.coordination.kind}'
    pid = stage.cloud.processes.pid(name)
    if pid is not None:
        os.kill(pid, signal.SIGSTOP)
    stage.running.kill([rng.choice(HOSTS)])
    time.sleep(rng.uniform(1.0, 33.0))
    if pid is not None:
        os.kill(pid, signal.SIGCONT)


def _kill_all(stage: Stage, rng: random.Random) -> None:
    """All agents are killed."""
    stage.running.kill(HOSTS)
    time.sleep(rng.uniform(0.0, 20.0))


def _restart_rabbit(stage: Stage, rng: random.Random) -> None:
    """RabbitMQ is restarted, and an agent killed."""
    stage.running.kill([rng.choice(HOSTS)])
    stage.cloud.processes.stop('rabbitmq', 60)
    stage.cloud.backends.start()
    print_line('RabbitMQ is back')


FAULTS: Sequence[Callable[[Stage, random.Random], None]] = (
    _kill_two,
    _kill_adopter,
    _freeze_and_kill,
    _kill_worker,
    _freeze_worker,
    _stop_and_kill,
    _freeze_backend,
    _kill_all,
    _restart_rabbit,
)
