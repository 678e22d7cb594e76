# SPDX-License-Identifier: Apache-2.0
"""Two real agents as processes, over each backend: killed, frozen, stopped.

Each agent prints when a gate opens and a worker ends. At the end the tests
check that no host's gate was open at both agents at the same time.
"""

import dataclasses
import itertools
import json
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hashring.clock import SystemClock
from tests.contract import children
from tests.contract.coordination import lone_agent
from tests.contract.coordination.backends import BackendUnderTest, Tooz

CLOCK = SystemClock()
ROOT = pathlib.Path(__file__).parents[3]
TERM_S = lone_agent.TIMING.lease_term_s

pytestmark = pytest.mark.slow


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A time during which one process had the gate of a host open."""

    host: str
    process: int
    since_s: float
    until_s: float


class Process:
    """One agent process; its output is in two files."""

    numbers = itertools.count(1)

    def __init__(self, backend: Tooz, home: str, folder: pathlib.Path) -> None:
        self.number = next(self.numbers)
        self.home = home
        self._said = folder / f'{home}.{self.number}.out'
        self._logged = folder / f'{home}.{self.number}.err'
        with self._said.open('wb') as out, self._logged.open('wb') as err:
            self.process = children.start(
                [
                    *(
                        sys.executable,
                        '-W',
                        'ignore',
                        '-X',
                        'faulthandler',
                        '-m',
                    ),
                    'tests.contract.coordination.lone_agent',
                    *(backend.url, backend.pool, home),
                    str(folder / home),
                ],
                cwd=ROOT,
                stdout=out,
                stderr=err,
            )

    def lines(self) -> list[dict[str, Any]]:
        whole = self._said.read_text().rpartition('\n')[0]
        return [json.loads(line) for line in whole.splitlines()]

    def open_hosts(self) -> set[str]:
        """Return the hosts whose gate is open in this process now."""
        now_s = CLOCK.now_s()
        spans = self.spans()
        return {s.host for s in spans if s.since_s <= now_s < s.until_s}

    def spans(self) -> list[Span]:
        """Return the open times of all gates, cut where a worker ended."""
        found: list[Span] = []
        for line in self.lines():
            if 'open' in line:
                found.append(
                    Span(
                        line['open'],
                        self.number,
                        line['since'],
                        line['until'],
                    )
                )
            elif 'end' in line:
                found = [_cut(s, line['end'], line['at']) for s in found]
        return found

    def ring(self) -> list[str]:
        """Return the ring on which the agents agreed last."""
        agreed = [line['agreed'] for line in self.lines() if 'agreed' in line]
        return list(agreed[-1]) if agreed else []

    def terminate(self, most_s: float) -> None:
        """Send SIGTERM; if the process does not end, print its stacks."""
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(most_s) == 0
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            raise AssertionError(self._logged.read_text()) from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _cut(span: Span, host: str, at_s: float) -> Span:
    if span.host != host or span.until_s <= at_s:
        return span
    return dataclasses.replace(span, until_s=max(at_s, span.since_s))


class Pair:
    """The processes of one test."""

    def __init__(self, backend: Tooz, folder: pathlib.Path) -> None:
        self._backend = backend
        self._folder = folder
        self.all: list[Process] = []

    def start(self, home: str) -> Process:
        made = Process(self._backend, home, self._folder)
        self.all.append(made)
        return made

    def check(self) -> None:
        """No host open twice; a killed process is over when it died."""
        spans = [span for process in self.all for span in process.spans()]
        for one, two in itertools.combinations(spans, 2):
            if one.host == two.host and one.process != two.process:
                apart = (
                    one.until_s <= two.since_s or two.until_s <= one.since_s
                )
                assert apart, (one, two)


@pytest.fixture
def pair(backend: BackendUnderTest, tmp_path: pathlib.Path) -> Iterator[Pair]:
    if not isinstance(backend, Tooz):
        pytest.skip('the fake lives in one process')
    made = Pair(backend, tmp_path)
    yield made
    for process in made.all:
        process.kill()


def wait(what: Callable[[], bool], most_s: float) -> None:
    ends_s = CLOCK.now_s() + most_s
    while not what():
        assert CLOCK.now_s() < ends_s, 'it did not come to pass'
        CLOCK.sleep(0.1)


def _serving(pair: Pair) -> tuple[Process, Process]:
    """Start both agents, and wait until each serves its own host."""
    one, two = pair.start('c1'), pair.start('c2')
    wait(lambda: one.open_hosts() == {'c1'}, 25.0)
    wait(lambda: two.open_hosts() == {'c2'}, 25.0)
    return one, two


def test_killed_adopted_and_handed_back(pair: Pair) -> None:
    """A killed agent's host is adopted and handed back on its return."""
    one, two = _serving(pair)
    wait(lambda: any('agreed' in line for line in two.lines()), 10.0)
    # An agent adopts only after it has held its lease for a term.
    CLOCK.sleep(TERM_S)

    one.kill()
    wait(lambda: two.open_hosts() == {'c1', 'c2'}, TERM_S * 2 + 10.0)

    back = pair.start('c1')
    wait(lambda: back.open_hosts() == {'c1'}, 25.0)
    wait(lambda: two.open_hosts() == {'c2'}, 10.0)

    back.terminate(15.0)
    two.terminate(15.0)


def test_bug_2144384_each_process_has_the_whole_ring(pair: Pair) -> None:
    """Every process has the whole ring, whenever it was started.

    networking-baremetal kept the ring in a class attribute, which was empty
    in forked processes.
    """
    both = ['c1', 'c2']
    one = pair.start('c1')
    wait(lambda: one.ring() == ['c1'], 25.0)
    two = pair.start('c2')
    wait(lambda: one.ring() == two.ring() == both, 25.0)
    one.kill()
    again = pair.start('c1')
    wait(lambda: again.ring() == both, 25.0)
    assert two.ring() == both


def test_frozen_and_thawed(backend: BackendUnderTest, pair: Pair) -> None:
    """A frozen agent's host is adopted; thawed, the agent gets it back."""
    one, two = _serving(pair)
    CLOCK.sleep(TERM_S)

    one.process.send_signal(signal.SIGSTOP)
    if backend.name == 'file':
        # A frozen process keeps its lock in the kernel.
        CLOCK.sleep(TERM_S * 2)
        assert two.open_hosts() == {'c2'}
    else:
        both = {'c1', 'c2'}
        wait(lambda: two.open_hosts() == both, TERM_S * 2 + 10.0)
    one.process.send_signal(signal.SIGCONT)
    wait(lambda: one.open_hosts() == {'c1'}, 25.0)
    wait(lambda: two.open_hosts() == {'c2'}, 10.0)
    pair.check()


def test_the_backend_goes_and_comes(
    backend: BackendUnderTest, pair: Pair
) -> None:
    """An outage shuts all gates; afterwards they open again."""
    if backend.name == 'file':
        pytest.skip('a folder does not go away')
    one, two = _serving(pair)
    backend.stop()
    CLOCK.sleep(TERM_S * 1.5)
    assert one.open_hosts() == two.open_hosts() == set()
    backend.start()
    wait(lambda: one.open_hosts() == {'c1'}, 60.0)
    wait(lambda: two.open_hosts() == {'c2'}, 60.0)
    pair.check()


def test_an_end_without_the_backend(
    backend: BackendUnderTest, pair: Pair
) -> None:
    """An agent ends in time after SIGTERM during an outage."""
    if backend.name == 'file':
        pytest.skip('a folder does not go away')
    one = pair.start('c1')
    wait(lambda: one.open_hosts() == {'c1'}, 25.0)
    backend.stop()
    try:
        CLOCK.sleep(TERM_S)
        # At exit each request to the backend has a time-out.
        one.terminate(20.0)
    finally:
        backend.start()
