# SPDX-License-Identifier: Apache-2.0
"""The running compute hosts: the process that serves each, and its end.

Reads only /proc and the records of processes, so it is quick and does not
depend on the daemons' own view.
"""

import concurrent.futures
import contextlib
import os
import signal
from collections.abc import Sequence

from onemachine import processes
from onemachine.layout import Layout
from onemachine.progress import CloudError, step

KINDS = ('agent', 'peer')


_PROG = 'ironic-compute-worker: '
_TITLE = f'{_PROG}host '


def worker_host(pid: int) -> str | None:
    """Return the host that a worker process serves, or None."""
    return host_of(processes.arguments(pid))


def host_of(words: Sequence[str]) -> str | None:
    """Return the host in the title of a worker, or None."""
    title = ' '.join(words).strip()
    return title.removeprefix(_TITLE) if title.startswith(_TITLE) else None


def kind_of(words: Sequence[str]) -> str:
    """Return what a child of an agent is, by its title."""
    title = ' '.join(words).strip()
    if (host := host_of(words)) is not None:
        return f'worker for {host}'
    if title.startswith(_PROG):
        return title.removeprefix(_PROG)  # Fork server, spare, or paths.
    return 'starting worker'


class Running:
    """The running agents and peers (stock nova-computes) of a cloud."""

    def __init__(self, layout: Layout) -> None:
        self._processes = processes.Processes(layout)

    def serving(self) -> dict[str, str]:
        """Return the process that serves each host: name and pid.

        A daemon that has lost its lease keeps its worker, which does nothing.
        So if two daemons have a worker of a host, another one than its own has
        adopted it.
        """
        serving: dict[str, str] = {}
        for name in self._processes.running():
            kind, _, host = name.partition('-')
            pid = self._processes.pid(name)
            if pid is None:
                continue
            if kind == 'peer':
                serving[host] = f'stock (process {pid})'
            if kind == 'agent':
                for worker in processes.children(pid):
                    served = worker_host(worker)
                    if served and (served != host or served not in serving):
                        serving[served] = f'{name} (worker {worker})'
        return serving

    def hosts(self) -> list[str]:
        """Return the home hosts of all agents and peers that run."""
        names = [name.partition('-') for name in self._processes.running()]
        return sorted({host for kind, _, host in names if kind in KINDS})

    def stop(self, hosts: Sequence[str]) -> None:
        """End processes with SIGTERM and wait for them."""
        names = [self._name(host) for host in hosts]
        with step(f'Stopping {" ".join(names)}'):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                ends = [
                    pool.submit(self._processes.stop, name, 90)
                    for name in names
                ]
            for end in ends:
                end.result()

    def replace(self, host: str) -> None:
        """Have an agent replaced by one that has loaded Nova before."""
        with step(f'Replacing agent {host}'):
            self._processes.replace(f'agent-{host}')

    def kill(self, hosts: Sequence[str]) -> None:
        """Kill processes with SIGKILL, an agent with all its workers."""
        names = [self._name(host) for host in hosts]
        self._signal_all(names, signal.SIGKILL)
        for name in names:
            self._processes.stop(name)

    def pause(self, hosts: Sequence[str]) -> None:
        """Stop processes with SIGSTOP, as on a hung machine."""
        self._signal_all([self._name(h) for h in hosts], signal.SIGSTOP)

    def resume(self, hosts: Sequence[str]) -> None:
        """Let stopped processes continue."""
        self._signal_all([self._name(h) for h in hosts], signal.SIGCONT)

    def _signal_all(
        self, names: Sequence[str], number: signal.Signals
    ) -> None:
        for name in names:
            self._processes.require(name)
            for one in self._family(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, number)

    def family(self, host: str) -> list[int]:
        """Return an agent or peer and its children; none if it has ended."""
        return [
            pid for kind in KINDS for pid in self._family(f'{kind}-{host}')
        ]

    def _family(self, name: str) -> list[int]:
        # The agent first, so that it does not notice the end of its workers.
        pid = self._processes.pid(name)
        return [] if pid is None else [pid, *processes.children(pid)]

    def _name(self, host: str) -> str:
        for kind in KINDS:
            if self._processes.pid(f'{kind}-{host}') is not None:
                return f'{kind}-{host}'
        raise CloudError(f'neither an agent nor a peer {host} is running')
