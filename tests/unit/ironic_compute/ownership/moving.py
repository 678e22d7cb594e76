# SPDX-License-Identifier: Apache-2.0
"""Test fixture: server s1 on a node of host c1, and what evicts it."""

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nova import objects
from nova.compute import vm_states

from hashring.ring import Host
from ironic_compute.gate import LeaseGate
from ironic_compute.ownership.eviction import Evictor
from ironic_compute.pool import host_aggregates
from ironic_compute.recovery.in_progress import InProgress
from resource_tracker.node import NodeId
from tests.simulation.nova import ServerRecord
from tests.simulation.rows import Server
from tests.unit.ironic_compute.hosts import Cloud

C1, C2, S1 = Host('c1'), Host('c2'), 's1'

objects.register_all()


class Desk:
    """Hosts c1 and c2, of which c1 evicts; the writes are recorded.

    :param node: the node with the server; ``free`` is another one of c1
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.cloud = Cloud(f'n{number}' for number in range(9))
        self.one, self.other = self.cloud.add('c1'), self.cloud.add('c2')
        self.cloud.show('c1', 'c2')
        self.cloud.settle()
        self.node, self.free = sorted(self.one.held_nodes.rows())[:2]
        self.gate = LeaseGate(self.cloud.clock, 1e9)
        self.writes: list[str] = []
        self.told: list[tuple[Host, list[NodeId]]] = []
        self.rechecked: list[tuple[NodeId, str]] = []
        self.actions: list[tuple[Any, ...]] = []
        self.patches: list[Any] = []
        self.info: dict[str, str] = {'nova_host_id': 'c1'}
        self.aggregates: list[Any] = []
        self.is_up = True
        self.before_save: Callable[[], None] = lambda: None
        self.messages, self.in_progress = InProgress(), InProgress()
        self._deploy()
        self._record_requests(patch)
        self.evictor = self._make_evictor()

    def _deploy(self) -> None:
        self.change_node(instance_uuid=S1, provision_state='active')
        self.server = self.cloud.nova.servers[S1] = ServerRecord(
            S1, 0.0, vm_states.ACTIVE, None, C1, self.node
        )
        self.one.audit()

    def change_node(self, **fields: Any) -> None:
        """Change the node with the server in Ironic."""
        facts = self.cloud.nodes[self.node]
        self.cloud.nodes[self.node] = dataclasses.replace(facts, **fields)

    def zone(self, name: str, *hosts: str, **metadata: str) -> None:
        """Add a host aggregate."""
        self.aggregates.append(
            types.SimpleNamespace(name=name, hosts=hosts, metadata=metadata)
        )

    def _record_requests(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(objects.Instance, 'get_by_uuid', self._read_server)
        patch.setattr(
            objects.AggregateList, 'get_all', lambda context: self.aggregates
        )
        for kind, name in (
            (objects.InstanceAction, 'action_start'),
            (objects.InstanceActionEvent, 'event_start'),
            (objects.InstanceActionEvent, 'event_finish'),
        ):
            patch.setattr(kind, name, self._recorder(name))

    def _recorder(self, name: str) -> Callable[..., None]:
        def record(context: Any, *args: Any, **kwargs: Any) -> None:
            self.actions.append((name, *args, kwargs.get('host')))

        return record

    def _read_server(self, context: Any, server: str, **_: Any) -> Server:
        record = dataclasses.replace(self.cloud.nova.server(server))
        return Server(self.cloud.nova, self, record)  # type: ignore[arg-type]

    def wait_and_write(self, act: Callable[[Any], Any]) -> Any:
        """Save the server, as the wire of the simulation."""
        self.before_save()
        self.gate.wait()
        self.writes.append('server')
        return act(types.SimpleNamespace(late=False, host=C1, way_s=0.0))

    def save_first(self, **fields: str) -> None:
        """Save the new host without an answer; the user goes on then."""
        self.server.host = C2
        for name, value in fields.items():
            setattr(self.server, name, value)

    def repeat(self, send: Callable[[], Any]) -> Any:
        """Send a request, which has an answer at once."""
        return send()

    def read(self, act: Callable[[], Any]) -> Any:
        """Read from Nova."""
        return act()

    def _make_evictor(self) -> Evictor:
        rows: Any = self.one.rows
        write = rows.write_holder
        services: Any = self.one.services
        services.is_record_up = lambda record: self.is_up

        def write_holder(*args: Any) -> bool:
            self.writes.append('row')
            return bool(write(*args))

        rows.write_holder = write_holder
        client: Any = types.SimpleNamespace(
            read_node=self.cloud.read_node,
            pool=self.cloud.pool,
            is_in_pool=self.cloud.is_in_pool,
            read_fields=lambda node, fields: {'instance_info': self.info},
            patch_node=lambda node, patch: self.patches.append(patch),
        )
        return Evictor(
            self.one.held_nodes,
            rows,
            client,
            services,
            self.one.pool,
            self.gate,
            self.messages,
            self.in_progress,
            self._lock,
            host_aggregates.find_difference,
            lambda node, server: self.rechecked.append((node, server)),
            lambda host, nodes: self.told.append((host, nodes)),
            self.one.moves,
        )

    @contextlib.contextmanager
    def _lock(self, server: str) -> Iterator[None]:
        self.writes.append('locked')
        yield

    @property
    def holder(self) -> Host:
        """The host in the node's row."""
        row = self.cloud.nova.live_row(self.node)
        assert row is not None
        return row.host
