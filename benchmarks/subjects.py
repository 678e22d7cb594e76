# SPDX-License-Identifier: Apache-2.0
"""The measured compute process: our daemon or stock nova-compute.

Runs in the Python of the cloud; ``__main__`` starts it there.
"""

import pathlib
import shutil
import signal
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
_RPC_LOG = pathlib.Path(__file__).parent / 'rpc_log'
# Log levels of both subjects: messages and requests without their content,
# the progress of builds, and the begin of serving.
_LOG_LEVELS = (
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


class LoggingLayout(Layout):
    """The layout of a cloud whose processes log their RPCs."""

    # Environment variables of oslo.config, for processes started later.
    options: ClassVar[dict[str, str]] = {}

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment that turns the logs on.

        oslo.config reads it before the configuration files.
        """
        plain = super().environment(**more)
        return {
            **plain,
            'PYTHONPATH': str(_RPC_LOG),
            'OS_DEFAULT__DEFAULT_LOG_LEVELS': _LOG_LEVELS,
            'OS_DEFAULT__LOGGING_CONTEXT_FORMAT_STRING': _FORMAT,
            'OS_DEFAULT__LOGGING_DEFAULT_FORMAT_STRING': _PLAIN,
            # Without this, each debug line ends with its place in the code.
            'OS_DEFAULT__LOGGING_DEBUG_FORMAT_SUFFIX': '',
            **self.options,
        }


class Subject:
    """One compute process that holds all nodes; a cloud has one at a time."""

    def __init__(self, kind: str, state: pathlib.Path) -> None:
        self.kind = kind
        self.layout = LoggingLayout.of(state)
        self._cloud = Cloud(self.layout)
        self._prefix = 'agent' if kind == OURS else 'peer'

    @property
    def name(self) -> str:
        """The name of the process in the cloud."""
        return f'{self._prefix}-{HOST}'

    def require_unused_cloud(self) -> None:
        """Raise if a compute process runs or a server exists.

        :raises CloudError: the cloud is in use, so nothing may be stopped
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
        """Delete all records if another host has compute nodes."""
        holders = sql(
            self.layout,
            'SELECT DISTINCT host FROM nova.compute_nodes WHERE deleted = 0;',
        )
        if set(holders.split()) - {HOST}:
            self.forget()

    def forget(self) -> None:
        """Delete all compute hosts, compute nodes and providers."""
        self.require_unused_cloud()
        sql(self.layout, _FORGET)
        self.remove_disk_cache()

    def remove_disk_cache(self) -> None:
        """Remove the disk cache of our daemon."""
        kept = self.layout.folder('agents', HOST) / 'state' / 'placement'
        shutil.rmtree(kept, ignore_errors=True)

    def start(self, options: Mapping[str, str] | None = None) -> float:
        """Start the process; return when Nova has its Service.

        :param options: environment variables of oslo.config, for ours only
        :returns: the time of the start in seconds since the epoch
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
        """Stop the process if it runs."""
        self._cloud.processes.stop(self.name, 180)

    def replace(self) -> None:
        """Have our daemon replaced by one that has loaded Nova before."""
        self._cloud.processes.replace(self.name)

    def kill(self) -> None:
        """Kill the process, and all that is left of it."""
        self._cloud.processes.signal(self.name, signal.SIGKILL)
        self._cloud.processes.stop(self.name)

    def client(self) -> list[proc.Process]:
        """Return the compute process and all its descendants."""
        pid = self._cloud.processes.pid(self.name)
        return proc.family(proc.all_processes(), [pid] if pid else [])

    def worker(self) -> list[proc.Process]:
        """Return the worker of the host; for stock, all processes."""
        if self.kind != OURS:
            return self.client()
        agent = self._cloud.processes.pid(self.name)
        known = proc.all_processes()
        pids = children(agent) if agent else []
        return [known[p] for p in pids if p in known and worker_host(p)]

    def servers(self) -> list[proc.Process]:
        """Return all processes of the other services."""
        processes = self._cloud.processes
        pids = [
            processes.pid(name)
            for name in processes.running()
            if not name.startswith(('agent-', 'peer-'))
        ]
        return proc.family(proc.all_processes(), [p for p in pids if p])

    def offered_count(self) -> int:
        """Return how many nodes Placement offers, by SQL."""
        return int(
            sql(
                self.layout,
                'SELECT COUNT(*) FROM placement.inventories '
                'WHERE reserved < total;',
            )
        )

    def unclean_count(self) -> int:
        """Return how many nodes Ironic cleans now, by SQL."""
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
        """Port -> the service that listens there."""
        return {self.layout.port(name): name for name in self.layout.apis}

    @property
    def cloud(self) -> Cloud:
        """The cloud; processes that are started with it do not log RPCs."""
        return Cloud(Layout.of(self.layout.state))
