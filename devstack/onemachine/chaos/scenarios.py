# SPDX-License-Identifier: Apache-2.0
"""Scenarios with failing hosts: killed, frozen, restarted."""

import collections
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from onemachine import running
from onemachine.chaos.load import End, Load
from onemachine.chaos.stage import ALL_HOSTS, TERM_S, Stage
from onemachine.chaos.watch import Pings
from onemachine.progress import CloudError, print_line, step, wait_until

HOSTS = ALL_HOSTS[:3]
SERVED_MAX_S = 30.0
_PATIENCE_S = 120.0
# Seconds, twice in each deploy of the fake hardware.
_DEPLOY_DELAY_S = 30
_DEPLOYS_COUNT = 20


def kills(stage: Stage) -> None:
    """kill -9 of a random agent and its workers, several times."""
    with stage.act('kills', HOSTS) as pings, stage.under_load() as load:
        served_s, moved, rewritten = [], [], []
        for number in range(stage.plan.rounds):
            print_line(f'Kill {number + 1} of {stage.plan.rounds}')
            before, begun_s = stage.evidence.snapshot(), time.time()
            served_s += _kill_one(stage, pings)
            written = stage.providers_written(begun_s, time.time())
            after = stage.evidence.snapshot()
            moved += before.moved(after)
            rewritten += before.needless_writes(after, written)
        _report_take_overs(stage, served_s, moved, rewritten)
    # Only stock nova-computes lose the builds that Ironic has not taken over.
    cut_until_s = math.inf if stage.plan.stock else -math.inf
    stage.report_requests(load, cut_until_s=cut_until_s)


def _kill_one(stage: Stage, pings: Pings) -> list[float]:
    """Kill an agent, wait until its hosts are served, and start it again.

    :returns: the seconds until each host was served; infinite: it never was
    """
    victim = stage.rng.choice(HOSTS)
    hosts = _served_by(stage, victim)
    time.sleep(stage.rng.uniform(0.0, 5.0))
    stage.running.kill([victim])
    # Earlier answers may still come from the killed worker.
    killed_s = time.time()
    took_s = [_served_after_s(pings, host, killed_s) for host in hosts]
    shown = ', '.join(
        f'{h} {s:.1f} s' for h, s in zip(hosts, took_s, strict=True)
    )
    print_line(f'Killed {victim}; served again after: {shown}')
    stage.start([victim])
    return took_s


def _served_after_s(pings: Pings, host: str, killed_s: float) -> float:
    try:
        return pings.await_answer(host, killed_s, _PATIENCE_S)
    except CloudError:
        return math.inf


def _served_by(stage: Stage, agent: str) -> list[str]:
    found = stage.running.serving().items()
    return sorted(
        host
        for host, by in found
        if by.startswith(f'agent-{agent} ')
        or (host == agent and by.startswith('stock '))
    )


def _report_take_overs(
    stage: Stage,
    served_s: Sequence[float],
    moved: Sequence[object],
    rewritten: Sequence[str],
) -> None:
    worst_s, median_s = max(served_s), statistics.median(served_s)
    stage.report.demand(
        worst_s <= SERVED_MAX_S,
        f'served again after {len(served_s)} kills (at most 30 s)',
        f'median {median_s:.1f} s, worst {worst_s:.1f} s',
    )
    stage.report.none('nodes or servers that changed their host', moved)
    stage.report.none('providers written to without a reason', rewritten)


def deploys(stage: Stage) -> None:
    """kill -9 with twenty deploys in flight, then with twenty deletes."""
    dial = str(_DEPLOY_DELAY_S)
    stage.dial('deploy-delay', dial)
    try:
        with stage.act('deploys', HOSTS) as pings:
            load = stage.idle_load()
            asked = [load.boot() for _ in range(_DEPLOYS_COUNT)]
            _await_deploying(stage, {r.server for r in asked})
            kill_and_return(stage, pings)
            load.stop(stage.evidence.not_received)
            stage.report.none(
                f'of {_DEPLOYS_COUNT} deploys in flight, not ACTIVE',
                [f'{r.end}: {r.detail}' for r in asked if r.end != End.DONE],
            )
            stage.dial('deploy-delay', '0')
            _deletes(stage, pings, load)
    finally:
        stage.dial('deploy-delay', '0')
    stage.report_requests(load)


def _deletes(stage: Stage, pings: Pings, deployed: Load) -> None:
    load = stage.idle_load()
    asked = [load.delete(r.server) for r in deployed.ended(End.DONE)]
    kill_and_return(stage, pings)
    load.stop(stage.evidence.not_received)
    stage.report.none(
        f'of {len(asked)} deletes in flight, not done',
        [f'{r.end}: {r.detail}' for r in asked if r.end != End.DONE],
    )


def _await_deploying(stage: Stage, servers: set[str]) -> None:
    def all_deploying() -> bool:
        nodes = stage.content.nodes().values()
        begun = {
            n.instance_id
            for n in nodes
            if n.provision_state in ('deploying', 'wait call-back')
        }
        return servers <= begun

    with step(f'Waiting until {len(servers)} deploys are in flight'):
        wait_until('all deploys in flight', all_deploying, 120)


def kill_and_return(stage: Stage, pings: Pings) -> None:
    """Kill the agent with the most servers; start it when adopted."""
    held = collections.Counter(stage.evidence.snapshot().hosts.values())
    victim = max(HOSTS, key=lambda host: held[host])
    stage.running.kill([victim])
    killed_s = time.time()
    took_s = _served_after_s(pings, victim, killed_s)
    stage.report.figure(
        'killed with what it had',
        f'{victim} with {held[victim]} servers, served after {took_s:.1f} s',
    )
    stage.start([victim])


def freeze(stage: Stage) -> None:
    """SIGSTOP of an agent and its workers for three terms, then SIGCONT."""
    with stage.act('freeze', HOSTS) as pings, stage.under_load() as load:
        victim = stage.rng.choice(HOSTS)
        stage.running.pause([victim])
        frozen_s = time.time()
        took_s = pings.await_answer(victim, frozen_s, _PATIENCE_S)
        stage.report.demand(
            took_s <= 60,
            'the frozen host served again (60 s)',
            f'{took_s:.1f} s',
        )
        time.sleep(max(0.0, frozen_s + 3 * TERM_S - time.time()))
        thawed_s = time.time()
        stage.running.resume([victim])
        time.sleep(2 * TERM_S)
        _await_home(stage, victim)
        late = _late_changes(stage, victim, thawed_s)
        stage.report.demand(
            len(late) <= 8,
            'late changes of the frozen processes (1 a thread)',
            len(late),
        )
        for line in late:
            print_line(f'Late: {line}')
        slow = [r for r in load.requests if _was_slow(r, frozen_s, thawed_s)]
        stage.report.none('requests meanwhile that took over 60 s', slow)
    # A build that was requested before the freeze may fail, as if its daemon
    # had been killed then.
    stage.report_requests(load, cut_until_s=frozen_s)


def _was_slow(request: object, from_s: float, to_s: float) -> bool:
    asked_s = getattr(request, 'asked_s', 0.0)
    took_s = getattr(request, 'took_s', 0.0)
    return from_s <= asked_s <= to_s and took_s > 60


def _late_changes(
    stage: Stage, host: str, thawed_s: float
) -> list[Mapping[str, object]]:
    """Return the changes that a thawed process still requested."""
    # Once it has joined the group again, a process may send changes.
    found = stage.changes(thawed_s, thawed_s + 1.0)
    return [one for one in found if one['host'] == host]


def _await_home(stage: Stage, host: str) -> None:
    """Wait until a host is served by its own agent again."""

    def is_home() -> bool:
        by = stage.running.serving().get(host, '')
        return by.startswith((f'agent-{host} ', 'stock '))

    try:
        wait_until(f'{host} serves itself', is_home, 60)
    except CloudError:
        if running.Running(stage.cloud.layout).hosts().count(host):
            raise
        # The agent may have exited; systemd would start it again.
        stage.start([host])


def rolling(stage: Stage) -> None:
    """Each agent is ended and started again, then replaced; three rounds."""

    def restart(host: str) -> None:
        stage.running.stop([host])
        stage.start([host])

    before_adopted = stage.log_count(' Adopted ')
    with stage.act('rolling', HOSTS) as pings, stage.under_load() as load:
        before = stage.evidence.snapshot()
        rolled_s = time.time()
        _roll(stage, pings, 'restart', restart)
        if not stage.plan.stock:
            _roll(stage, pings, 'replacement', stage.running.replace)
        after = stage.evidence.snapshot()
        stage.report.none(
            'nodes or servers that changed their host', before.moved(after)
        )
        written = stage.providers_written(rolled_s, time.time())
        stage.report.none(
            'providers written to without a reason',
            before.needless_writes(after, written),
        )
        adopted = stage.log_count(' Adopted ') - before_adopted
        stage.report.demand(adopted == 0, 'adoptions', adopted)
    stage.report_requests(load)


def _roll(
    stage: Stage, pings: Pings, what: str, renew: Callable[[str], None]
) -> None:
    """Renew each agent three times; report how long no host was served."""
    silences_s = []
    for host in HOSTS * 3:
        begun_s = time.time()
        renew(host)
        pings.await_answer(host, time.time(), _PATIENCE_S)
        silences_s.append(pings.longest_silence_s(host, begun_s))
    stage.report.figure(
        f'not served during a {what}',
        f'median {statistics.median(silences_s):.1f} s, '
        f'worst {max(silences_s):.1f} s',
    )
