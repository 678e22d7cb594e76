# SPDX-License-Identifier: Apache-2.0
"""Operators who move servers, users who need them meanwhile, and the checks.

The moves are those of the real code (``ownership.eviction``). At each write of
a move, the former host's or the new host's daemon may die, or a user may
request something with what nova-api has read before. An accepted request must
be done, by the host that serves the server.
"""

import contextlib
import math
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from nova.compute import task_states, vm_states

from hashring.ring import Host
from ironic_compute.ownership.drain_order import DrainOrder
from ironic_compute.ownership.eviction import Evictor, Terms
from resource_tracker.node import NodeId
from tests.simulation.broker import Message
from tests.simulation.nova import LATE_WRITE, ServerRecord
from tests.simulation.pins import Pins
from tests.simulation.wire import SentRequest

# How often an operator orders a move, and a user a reboot or a volume.
ORDERS_PER_S = (0.5, 2.0)
DRAINS_PER_S = (0.01, 0.03)
REBOOTS_PER_S = (0.05, 0.2)
# How likely a world has a host in another availability zone.
ZONE_CHANCE = 0.4
# A message that was under way while its server has moved so often may reach
# a host that does not serve the server any more.
SOON_S = 90.0
# If the answer to the last save of a build is lost, the save is repeated for
# so long, and a request meanwhile makes Nova fail the build. That has nothing
# to do with moves.
BUILT_S = 25.0
RACE_CHANCE = 0.3
# What happens at a write of a move, and how likely it is.
EVENTS = {
    'kill': 0.06,
    'crash': 0.08,
    'kill target': 0.06,
    'delete': 0.06,
    'reboot': 0.3,
}


class Moves:
    """The moves of one world; without any in most worlds."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.aggregates: list[Any] = []
        self.moved_count = 0
        self._work: Counter[tuple[str, str]] = Counter()
        self._moved_s: dict[str, list[float]] = {}
        self._excused: set[str] = set()
        self._built_s: dict[str, float] = {}
        self._drained: Host | None = None
        self._retired: Host | None = None
        self._is_on = world.environment.has_moves
        if not self._is_on:
            return
        self._make_zones()
        rng, repeat = world.rng, world.faults.repeat
        repeat('order', rng.choice(ORDERS_PER_S), self._order)
        repeat('drain', rng.choice(DRAINS_PER_S), self._drain_or_undrain)
        repeat('reboot', rng.choice(REBOOTS_PER_S), self._ask_any_reboot)
        repeat('attach', rng.choice(REBOOTS_PER_S), self._attach_any)
        self.pins = Pins(world)

    def _make_zones(self) -> None:
        """Put one host into another availability zone, in some worlds."""
        hosts = list(self._world.homes)
        has_pools = self._world.environment.has_pools
        if (
            not has_pools
            and len(hosts) > 2
            and self._world.rng.random() < ZONE_CHANCE
        ):
            other = [hosts.pop(self._world.rng.randrange(len(hosts)))]
            self._add_zone('zone-2', other)
        self._add_zone('zone-1', hosts)

    def _add_zone(self, zone: str, hosts: list[Host]) -> None:
        metadata = {'availability_zone': zone}
        self.aggregates.append(
            types.SimpleNamespace(name=zone, hosts=hosts, metadata=metadata)
        )

    def _zone(self, host: str | None) -> str:
        for each in self.aggregates:
            if host in each.hosts:
                return str(each.name)
        return 'no zone'

    @property
    def _now_s(self) -> float:
        return float(self._world.kernel.now_s)

    def keeps_server(self) -> bool:
        """Return whether a user keeps a server, so that it can be moved."""
        return self._is_on and self._world.rng.random() < 0.8

    # Operators

    def _order(self) -> None:
        """Order a move, or two at once that contradict each other."""
        servers = [s for s in self._servers() if s.host and s.node]
        active = [s for s in servers if s.vm_state == vm_states.ACTIVE]
        if active and self._world.rng.random() < 0.95:
            servers = active
        if not servers:
            return
        server = self._world.rng.choice(servers)
        count = self._world.rng.choice((1, 1, 1, 2))
        for host in self._world.rng.sample(self._world.homes, count):
            delay_s = self._world.rng.choice((0.0, 0.0, 0.05))
            self._world.kernel.later(delay_s, self._sender(server, host))

    def _sender(self, server: ServerRecord, host: Host) -> Callable[[], None]:
        """Return what sends an order to the holder's worker."""

        node = NodeId(server.node or '')

        def send() -> None:
            row = self._world.nova.live_row(server.node)
            for worker in self._world.workers():
                is_holder = row is not None and worker.host == row.host
                if is_holder and worker.may_act and not worker.draining:
                    worker.spawn(
                        lambda worker=worker: self.pins.move(
                            worker, node, host
                        )
                    )

        return send

    def _drain_or_undrain(self) -> None:
        """Have a host drained or retired, or enabled; not the last one."""
        services = self._world.nova.services
        enabled = [h for h in services if not services[h].disabled]
        host = self._world.rng.choice(self._world.homes)
        record = services.get(host)
        if record is None or (enabled == [host] and not record.disabled):
            return
        record.disabled = not record.disabled
        order = DrainOrder(
            self._world.rng.choice((None, None, 2)),
            self._world.rng.random() < 0.4,
        )
        record.disabled_reason = order.reason() if record.disabled else None
        self._world.log(f'{host}: {record.disabled_reason or "enabled"}')

    def _servers(self) -> list[ServerRecord]:
        servers = self._world.nova.servers.values()
        return [s for s in servers if not s.deleted]

    # Users

    def _ask_any_reboot(self) -> None:
        idle = [
            s
            for s in self._servers()
            if s.vm_state == vm_states.ACTIVE and s.was_active
        ]
        if idle:
            server = self._world.rng.choice(idle)
            # nova-api has read the server's record a moment before.
            former, delay_s = (
                server.host,
                self._world.rng.choice((0.0, 0.05, 1.0)),
            )
            self._world.kernel.later(
                delay_s, lambda: self._ask_reboot(server, former)
            )

    def _ask_reboot(self, server: ServerRecord, former: str | None) -> None:
        is_fit = server.vm_state == vm_states.ACTIVE and not server.deleted
        built_s = self._built_s.get(server.uuid, math.inf)
        if self._now_s - built_s < BUILT_S:
            return
        if former is None or server.task_state is not None or not is_fit:
            return
        self._world.log(f'reboot {server.uuid}, sent to {former}')
        server.task_state = task_states.REBOOTING_HARD
        server.updated_at = self._now_s
        server.is_reboot_due = True
        message = Message('reboot', server.uuid)
        self._world.nova.broker.cast(Host(former), message)

    def _attach_any(self) -> None:
        idle = [s for s in self._servers() if s.was_active]
        if idle:
            self._attach(self._world.rng.choice(idle))

    def _attach(self, server: ServerRecord) -> None:
        """Request something for which Nova saves no task."""
        former, delay_s = server.host, self._world.rng.choice((0.0, 0.05, 1.0))
        if former is not None:
            message = Message('attach', server.uuid)
            cast = self._world.nova.broker.cast
            self._world.kernel.later(delay_s, lambda: cast(former, message))

    # At the writes

    def note_save(
        self, request: SentRequest, former: ServerRecord, record: ServerRecord
    ) -> None:
        """Check a change of a server; maybe something happens just then."""
        if not self._is_on:
            return
        if former.vm_state != record.vm_state == vm_states.ACTIVE:
            self._built_s[record.uuid] = self._now_s
        was_rebooting = former.task_state == task_states.REBOOTING_HARD
        is_done = record.task_state is None and not record.delete_asked
        is_early = was_rebooting and is_done and record.is_reboot_due
        if is_early and (request.late or request.is_repeated):
            # The end of an earlier reboot, whose answer was lost. A reboot of
            # Nova has a task of its own while it runs.
            record.is_reboot_due = False
            self._world.breaks_count += 1
        elif is_early:
            self._world.fail(f'{record.uuid} was not rebooted, its task ended')
        if former.host is None or record.host in (None, former.host):
            return
        self.moved_count += 1
        self._moved_s.setdefault(record.uuid, []).append(self._now_s)
        self._world.log(
            f'{request.sender} gives {record.uuid} to {record.host}'
        )
        if request.late:
            self._world.breaks_count += 1
        else:
            self._check_move(request, former, record)
        self._happen(record, former.host, str(record.host))

    def _check_move(
        self, request: SentRequest, former: ServerRecord, record: ServerRecord
    ) -> None:
        what = f'{request.sender} moves {record.uuid}'
        if request.host != former.host:
            self._world.fail(f'{what} of {former.host}')
        if former.task_state is not None:
            self._world.fail(f'{what}, which is {former.task_state}')
        if former.vm_state not in (vm_states.ACTIVE, vm_states.ERROR):
            self._world.fail(f'{what}, which is {former.vm_state}')
        self._world.pools.check_move(request, former, record)
        zones = self._zone(former.host), self._zone(record.host)
        if zones[0] != zones[1]:
            self._world.fail(f'{what} from {zones[0]} to {zones[1]}')
        if self._work[request.sender, record.uuid] > 1:
            self._world.fail(f'{what} while it works on it otherwise')

    def note_row(self, node: str) -> None:
        """Maybe let something happen when the row of a server has changed."""
        if not self._is_on:
            return
        row = self._world.nova.live_row(node)
        for server in self._servers():
            if server.node == node and server.host == row.host and row.former:
                self._happen(server, row.former[0], row.host)

    def _happen(self, server: ServerRecord, former: str, host: str) -> None:
        """Let one event happen at a write, or none."""
        chance = self._world.rng.random()
        if self._world.faults.calm:
            return
        for event, likely in EVENTS.items():
            chance -= likely
            if chance < 0.0:
                self._world.kernel.later(
                    self._world.rng.choice((0.0, 0.0, 0.02)),
                    lambda event=event: self._act(event, server, former, host),
                )
                return

    def _act(
        self, event: str, server: ServerRecord, former: str, host: str
    ) -> None:
        if event == 'reboot':
            self._ask_reboot(server, self._world.rng.choice((former, host)))
        elif event == 'delete' and not server.deleted:
            self._world.load.ask_delete(server)
        elif event == 'crash':
            for worker in list(self._world.workers()):
                if worker.host == former:
                    self._world.log(f'crash {worker.name} at a move')
                    worker.machine.workers.crash(worker.host)
        elif event in ('kill', 'kill target'):
            self._kill(host if event == 'kill target' else former)

    def _kill(self, host: str) -> None:
        for worker in list(self._world.workers()):
            if worker.host == host and worker.machine.process is not None:
                delay_s = self._world.rng.choice((0.5, 5.0, 30.0))
                worker.machine.kill(delay_s)
                return

    # The work of a worker on a server

    @contextlib.contextmanager
    def working(self, worker: Any, server: str) -> Iterator[None]:
        """Note that a task of a worker works on a server."""
        key = worker.name, server
        self._work[key] += 1
        try:
            yield
        finally:
            self._work[key] -= 1

    def is_at_work_on(self, server: str) -> bool:
        """Return whether a worker moves a server, or works on it, now."""
        return self._is_on and any(
            count for (_, uuid), count in self._work.items() if uuid == server
        )

    def observe(self, worker: Any, evictor: Evictor) -> None:
        """Note the moves of a worker as work on their servers."""
        evict, find = evictor._evict, evictor._find

        def find_and_race(*args: Any) -> Any:
            found = find(*args)
            self._world.pools.note_read(found)
            self._race(found.instance.uuid)
            return found

        def note_and_evict(
            node: NodeId, server: str, target: Host, terms: Terms
        ) -> None:
            with self.working(worker, server):
                evict(node, server, target, terms)

        evictor._evict = note_and_evict  # type: ignore[method-assign]
        evictor._find = find_and_race  # type: ignore[assignment,method-assign]

    def _race(self, server: str) -> None:
        """Maybe let a user be faster, between the read and the write."""
        record = self._world.nova.servers[server]
        if self._world.faults.calm or self._world.rng.random() > RACE_CHANCE:
            return
        if self._world.rng.random() < 0.3:
            self._attach(record)
        else:
            self._ask_reboot(record, record.host)

    def forget_pin(self, node: str | None) -> None:
        """Note that another pin than the one that was confirmed is right.

        The server on the node goes to another host, where its node follows it
        and is pinned; or the late write of an earlier order has pinned the
        node, which Nova cannot refuse and whose sender may be gone.
        """
        if self._is_on and node is not None:
            self.pins.forget(node)

    def note_follow(self, server: str) -> None:
        """Note whether the node of a server has followed it."""
        record = self._world.nova.servers[server]
        row = self._world.nova.live_row(record.node or '')
        if row is None or row.host != record.host:
            self._excused.add(server)  # Nova did not answer, or it was busy.

    def check_served(self, request: SentRequest, server: str) -> None:
        """Check that Ironic is asked by the host of the server."""
        record = self._world.nova.servers[server]
        is_elsewhere = record.host not in (None, request.host)
        if self._is_on and is_elsewhere and not request.late:
            self._fail_unless_excused(record, f'{request.sender} works on')

    def check_handler(self, worker: Any, message: Message) -> None:
        """Check that the host of a server handles the message about it."""
        record = self._world.nova.servers[message.server]
        is_elsewhere = record.host not in (None, worker.host)
        if self._is_on and is_elsewhere:
            what = f'{worker.name} serves {message.name} of'
            self._fail_unless_excused(record, what)

    def _fail_unless_excused(self, record: ServerRecord, what: str) -> None:
        if self._world.faults.calm:
            return
        moved_s = self._moved_s.get(record.uuid, [])
        soon = [s for s in moved_s if self._now_s - s < SOON_S]
        is_excused = record.uuid in self._excused or len(soon) > 1
        if record.deleted or is_excused or LATE_WRITE in record.excuses:
            return
        self._world.fail(f'{what} {record.uuid}, which is on {record.host}')

    # The end

    def keep_draining(self) -> None:
        """Have one host drained in the calm, in some worlds."""
        services, known = self._world.nova.services, self._world.known()
        if not self._is_on or len(self.aggregates) > 1:
            return
        if self._world.environment.has_pools:
            return  # The only host of a pool cannot be empty.
        hosts = [h for h in self._world.homes if h in services and h in known]
        if len(hosts) > 1 and self._world.rng.random() < 0.5:
            self._drained = host = self._world.rng.choice(hosts)
            others = [m for m in self._world.machines if m.home != host]
            is_last = all(machine.stays_dead for machine in others)
            may_retire = self._world.is_known_elsewhere(host) and not is_last
            retires = self._world.rng.random() < 0.5 and may_retire
            order = DrainOrder(retires=retires)
            services[host].disabled = True
            services[host].disabled_reason = order.reason()
            self._world.log(f'{host}: {order.reason()}, in the calm')
            self._retired = host if order.retires else None
            for machine in self._world.machines:
                # Nobody starts it again after its end.
                machine.stays_dead |= machine.home == self._retired

    def problems(self) -> Iterator[str]:
        """Yield the servers whose user still waits, and a drain's rest."""
        if self._drained is not None and self._world.nova.uses(self._drained):
            yield f'{self._drained} is drained, and is not empty'
        if self._retired in self._world.nova.services:
            yield f'{self._retired} is retired, and has a Service'
        if self._retired in self._world.known():
            yield f'{self._retired} is retired, and known'
        # A pin ends when its node leaves the pool.
        if self._is_on and not self._world.environment.has_pools:
            yield from self.pins.problems()
        for server in self._servers() if self._is_on else ():
            if server.is_reboot_due and not server.delete_asked:
                yield f'{server.uuid} was never rebooted'
            was_deleted = server.delete_asked and server.task_state is None
            is_idle = was_deleted and server.vm_state == vm_states.ACTIVE
            if is_idle and server.uuid in self._moved_s:
                yield f'the delete of {server.uuid} was lost'
