# SPDX-License-Identifier: Apache-2.0
"""A simulated operator, who deletes Services and dismantles a controller.

Nova deletes the rows of a host with its Service, and refuses the deletion
while the host has servers. Its daemon, if it lives, goes on without a Service
until it is started again.
"""

from typing import Any

from hashring.ring import Host
from hashring.workers import HostForgotten

# How often a Service is deleted.
DELETIONS_PER_S = 0.02
TRY_S = 5.0
# So often, and so many times, a worker sends the request to its agent.
SEND_S = 0.5
SENDS_MAX = 20


class Operator:
    """The operator of one world."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._dismantled: Any = None
        self._is_forgotten = False
        if world.environment.has_deletions:
            world.faults.repeat(
                'deletion', DELETIONS_PER_S, self._delete_any_service
            )
            world.kernel.later(world.faults.choose(30.0), self._dismantle)

    def _delete_any_service(self) -> None:
        hosts = [
            h for h in self._world.homes if h in self._world.nova.services
        ]
        if hosts:
            self._delete_service(self._world.rng.choice(hosts))

    def _delete_service(self, host: Host) -> None:
        servers = self._world.nova.servers.values()
        if not any(s.host == host and not s.deleted for s in servers):
            self._world.nova.delete_service(host)

    def _dismantle(self) -> None:
        """Take a controller away; have the pool forget its host."""
        machine = self._world.rng.choice(self._world.machines)
        self._dismantled = machine
        machine.stays_dead = True
        machine.kill(0.0, 'dismantle')
        self._try_forget(machine.home)

    def _try_forget(self, host: Host) -> None:
        """``ironic-computectl host forget``, until it is not refused."""
        world = self._world
        if world.faults.calm:
            return
        record = world.nova.services.get(host)
        if record is not None:
            record.disabled = True
        worker = next(iter(world.workers()), None)
        if worker is None or not self._may_forget(worker, host):
            world.kernel.later(TRY_S, lambda: self._try_forget(host))
            return
        world.log(f'{worker.name} has {host} forgotten')
        deletes = world.rng.random() < 0.5
        self._send_forget(worker, host, deletes, SENDS_MAX)

    def _send_forget(
        self, worker: Any, host: Host, deletes: bool, sends_count: int
    ) -> None:
        """``OperatorRequests._send``: send until the worker's view shows it.

        :param deletes: whether the Service is deleted then
        """
        world = self._world
        if host not in worker.pool.known:
            self._is_forgotten = True
            if deletes:
                world.kernel.later(TRY_S, lambda: self._clean_up(host))
        elif worker.alive and sends_count:
            worker.machine.workers.report(HostForgotten(host))
            world.kernel.later(
                SEND_S,
                lambda: self._send_forget(
                    worker, host, deletes, sends_count - 1
                ),
            )
        else:
            world.log(f'{worker.name} did not have {host} forgotten')
            self._try_forget(host)

    def _clean_up(self, host: Host) -> None:
        """Delete the Service of a forgotten host, unless it may be back."""
        if not self._world.faults.calm:
            self._delete_service(host)

    def _may_forget(self, worker: Any, host: Host) -> bool:
        """``hosts.forget`` and ``OperatorRequests.forget_host``."""
        nova, status = self._world.nova, worker.pool.ring_status()
        members = self._world.service.members()
        return (
            worker.host != host
            and worker.may_act
            and host in worker.pool.known
            and all(member.home != host for member in members)
            and status.agreed
            and host not in status.ring.hosts
            and not nova.uses(host)
        )

    def return_machine(self) -> None:
        """Put the dismantled controller up again, in every second world.

        In the other worlds no other machine is gone for good. If the agents
        never knew its host, nobody adopts that, so it must come back.
        """
        if self._dismantled is None:
            return
        if self._world.seed % 2 or not self._is_known(self._dismantled):
            self._dismantled.stays_dead = False
            self._dismantled = None

    def _is_known(self, dismantled: Any) -> bool:
        """Return whether other agents know the host of a machine, or did."""
        return self._is_forgotten or any(
            dismantled.home in machine.saved_state.read_known()
            for machine in self._world.machines
            if machine is not dismantled
        )

    def has_forgotten(self, host: Host) -> bool:
        """Return whether this host is gone for good, and was forgotten.

        Nobody enables it in Nova again. An agent that was cut off and has not
        heard that it was forgotten would give nodes to it.
        """
        is_gone = (
            self._dismantled is not None and self._dismantled.home == host
        )
        return self._is_forgotten and is_gone

    @property
    def forgotten_host(self) -> Host | None:
        """The host that no agent may know any more.

        None if state directories were replaced: without any file that has
        the mark, an older one brings the host back.
        """
        is_lasting = not self._world.environment.has_wrong_folders
        if is_lasting and self._is_forgotten and self._dismantled is not None:
            home: Host = self._dismantled.home
            return home
        return None

    def restart_daemons(self) -> None:
        """Start the daemons again that have no Service."""
        for machine in self._world.machines:
            if machine.home not in self._world.nova.services:
                machine.kill(1.0, 'restart')
