# SPDX-License-Identifier: Apache-2.0
"""Who is measured: our daemon or stock nova-compute, in the same cloud.

To be run in the cloud's own Python; ``__main__`` sees to it.
"""

import pathlib
import shutil

from onemachine.backends import sql
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.layout import Layout
from onemachine.progress import CloudError
from onemachine.running import Running

from benchmarks import proc
from benchmarks.results import OURS

HOST = 'bench'
# One line for each message that is sent, for both subjects alike.
_TELLS_RPCS = (
    'amqp=WARN,amqplib=WARN,qpid.messaging=INFO,oslo.messaging=INFO,'
    'oslo_messaging=INFO,oslo_messaging._drivers.amqpdriver=DEBUG,'
    'oslo_service=INFO,oslo_service.periodic_task=DEBUG,'
    'sqlalchemy=WARN,urllib3.connectionpool=WARN,stevedore=WARN,'
    'keystoneauth=WARN,oslo.cache=INFO,dogpile.core.dogpile=INFO'
)
_FORMAT = (
    '%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s '
    '[thread:%(threadName)s] %(message)s'
)
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
    """A cloud whose processes, if started from here, tell their RPCs."""

    __slots__ = ()

    def environment(self, **more: str) -> dict[str, str]:
        """Set by the environment, which oslo.config reads before files."""
        plain = super().environment(**more)
        return {
            **plain,
            'OS_DEFAULT__DEFAULT_LOG_LEVELS': _TELLS_RPCS,
            'OS_DEFAULT__LOGGING_CONTEXT_FORMAT_STRING': _FORMAT,
            'OS_DEFAULT__LOGGING_DEFAULT_FORMAT_STRING': _FORMAT,
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

    def forget(self) -> None:
        """Let neither Nova nor Placement know any node or compute host."""
        self.refuse_company()
        sql(self.layout, _FORGET)
        kept = self.layout.folder('agents', HOST) / 'state' / 'placement'
        shutil.rmtree(kept, ignore_errors=True)

    def start(self) -> None:
        """Start it; returns when it serves."""
        computes = Computes(self._cloud)
        if self.kind == OURS:
            computes.start_agents([HOST])
        else:
            computes.start_peers([HOST])

    def stop(self) -> None:
        """End it, if it runs."""
        self._cloud.processes.stop(self.name, 180)

    def client(self) -> list[proc.Process]:
        """Return the processes that are measured."""
        pid = self._cloud.processes.pid(self.name)
        return proc.family(proc.all_processes(), [pid] if pid else [])

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

    def reserved(self) -> set[str]:
        """Return the nodes that cannot take a build, past all APIs."""
        text = sql(
            self.layout,
            'SELECT p.uuid FROM placement.inventories i JOIN '
            'placement.resource_providers p ON p.id = i.resource_provider_id '
            'WHERE i.reserved >= i.total;',
        )
        return set(text.split())
