# SPDX-License-Identifier: Apache-2.0
"""Who is measured: our daemon or stock nova-compute, in the same cloud.

To be run in the cloud's own Python; ``__main__`` sees to it.
"""

import pathlib
import shutil
import time
from collections.abc import Mapping
from typing import ClassVar

from onemachine.backends import sql
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.layout import Layout
from onemachine.processes import children
from onemachine.progress import CloudError
from onemachine.running import Running, worker_host

from benchmarks import proc
from benchmarks.results import OURS

HOST = 'bench'
_TELLING = pathlib.Path(__file__).parent / 'telling'
# What each message and request is, when a build is where, when it serves;
# for both subjects alike. No line has the content of a request.
_TELLS = (
    'amqp=WARN,amqplib=WARN,qpid.messaging=INFO,oslo.messaging=INFO,'
    'oslo_messaging=INFO,benchmarks.rpc=DEBUG,'
    'oslo_messaging.rpc.server=DEBUG,'
    'oslo_service=INFO,oslo_service.periodic_task=DEBUG,'
    'nova.compute.manager=DEBUG,nova.service=DEBUG,ironic_compute.feed=DEBUG,'
    'sqlalchemy=WARN,urllib3.connectionpool=DEBUG,stevedore=WARN,'
    'keystoneauth=WARN,oslo.cache=INFO,dogpile.core.dogpile=INFO'
)
_PLAIN = (
    '%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s '
    '[thread:%(threadName)s] [] %(instance)s%(message)s'
)
_FORMAT = _PLAIN.replace('[]', '[%(request_id)s]')
_FORGET = """
DELETE FROM placement.resource_provider_traits;
DELETE FROM placement.resource_provider_aggregates;
DELETE FROM placement.inventories;
UPDATE placement.resource_providers
    SET root_provider_id = NULL, parent_provider_id = NULL;
DELETE FROM placement.resource_providers;
DELETE FROM nova.compute_nodes;
DELETE FROM nova.services WHERE `binary` = 'nova-compute';
"""


class TellingLayout(Layout):
    """A cloud whose processes, if started from here, tell what they do."""

    # Of the processes that are started from now on, as oslo.config reads
    # them from the environment.
    options: ClassVar[dict[str, str]] = {}

    def environment(self, **more: str) -> dict[str, str]:
        """Set by the environment, which oslo.config reads before files."""
        plain = super().environment(**more)
        return {
            **plain,
            'PYTHONPATH': str(_TELLING),
            'OS_DEFAULT__DEFAULT_LOG_LEVELS': _TELLS,
            'OS_DEFAULT__LOGGING_CONTEXT_FORMAT_STRING': _FORMAT,
            'OS_DEFAULT__LOGGING_DEFAULT_FORMAT_STRING': _PLAIN,
            # Where in the code a line is made is of no use here.
            'OS_DEFAULT__LOGGING_DEBUG_FORMAT_SUFFIX': '',
            **self.options,
        }


class Subject:
    """One compute process with all nodes; one at a time in a cloud."""

    def __init__(self, kind: str, state: pathlib.Path) -> None:
        self.kind = kind
        self.layout = TellingLayout.of(state)
        self._cloud = Cloud(self.layout)
        self._prefix = 'agent' if kind == OURS else 'peer'

    @property
    def name(self) -> str:
        """The name of the process in the cloud."""
        return f'{self._prefix}-{HOST}'

    def refuse_company(self) -> None:
        """See that no compute process runs and no server is there.

        :raises CloudError: one does; it is not ours to stop
        """
        running = Running(self.layout).hosts()
        if running:
            raise CloudError(
                f'compute hosts {" ".join(running)} run: "devstack/cloud '
                f'stop {" ".join(running)}" first'
            )
        allocations = sql(
            self.layout, 'SELECT COUNT(*) FROM placement.allocations;'
        )
        if int(allocations):
            raise CloudError(
                'there are servers: "devstack/cloud delete --all" first'
            )

    def forget_others(self) -> None:
        """See that no other compute host has nodes that are to be ours."""
        holders = sql(
            self.layout,
            'SELECT DISTINCT host FROM nova.compute_nodes WHERE deleted = 0;',
        )
        if set(holders.split()) - {HOST}:
            self.forget()

    def forget(self) -> None:
        """Let neither Nova nor Placement know any node or compute host."""
        self.refuse_company()
        sql(self.layout, _FORGET)
        self.forget_ledger()

    def forget_ledger(self) -> None:
        """Remove what our daemon keeps of Placement's answers."""
        kept = self.layout.folder('agents', HOST) / 'state' / 'placement'
        shutil.rmtree(kept, ignore_errors=True)

    def start(self, options: Mapping[str, str] | None = None) -> float:
        """Start it; returns when Nova has heard of it.

        :param options: for ours alone, as oslo.config has them in the
            environment
        :returns: when its start was asked for, since the epoch
        """
        self.layout.options.clear()
        if self.kind == OURS:
            self.layout.options.update(options or {})
        asked_s = time.time()
        computes = Computes(self._cloud)
        if self.kind == OURS:
            computes.start_agents([HOST])
        else:
            computes.start_peers([HOST])
        return asked_s

    def stop(self) -> None:
        """End it, if it runs."""
        self._cloud.processes.stop(self.name, 180)

    def client(self) -> list[proc.Process]:
        """Return the processes that are measured."""
        pid = self._cloud.processes.pid(self.name)
        return proc.family(proc.all_processes(), [pid] if pid else [])

    def worker(self) -> list[proc.Process]:
        """Return the process that serves the host; of stock, all there is."""
        if self.kind != OURS:
            return self.client()
        agent = self._cloud.processes.pid(self.name)
        known = proc.all_processes()
        pids = children(agent) if agent else []
        return [known[p] for p in pids if p in known and worker_host(p)]

    def servers(self) -> list[proc.Process]:
        """Return all processes that serve them."""
        processes = self._cloud.processes
        pids = [
            processes.pid(name)
            for name in processes.running()
            if not name.startswith(('agent-', 'peer-'))
        ]
        return proc.family(proc.all_processes(), [p for p in pids if p])

    def offered_count(self) -> int:
        """Return how many nodes can take a build, past all APIs."""
        return int(
            sql(
                self.layout,
                'SELECT COUNT(*) FROM placement.inventories '
                'WHERE reserved < total;',
            )
        )

    def unclean_count(self) -> int:
        """Return how many nodes Ironic is cleaning, past all APIs."""
        states = "('deleting', 'cleaning', 'clean wait')"
        return int(
            sql(
                self.layout,
                'SELECT COUNT(*) FROM ironic.nodes WHERE provision_state '  # noqa: S608
                f'IN {states};',
            )
        )

    @property
    def ports(self) -> dict[int, str]:
        """The service that listens on each port."""
        return {self.layout.port(name): name for name in self.layout.apis}

    @property
    def cloud(self) -> Cloud:
        """The cloud it is in; what is restarted in it tells no more."""
        return Cloud(Layout.of(self.layout.state))
