# SPDX-License-Identifier: Apache-2.0
"""An Ironic in memory that keeps Ironic's rules.

What may be asked in which state, what is refused (400) and what is a conflict
(409) is as in ``ironic_machine``. Work that Ironic does by itself is done
when ``settle`` is called.
"""

import dataclasses
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from oslo_utils import timeutils

from ironic_compute import errors
from ironic_compute.ironic_api.descriptions import HOST_KEY
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes import ironic_machine

NODE = NodeId('11111111-1111-1111-1111-111111111111')


class FakeIronic:
    """Ironic behind the methods of ``IronicClient``."""

    def __init__(self) -> None:
        # What is settled by two threads at once is settled once.
        self.lock = threading.RLock()
        self.nodes: dict[str, NodeFacts] = {}
        self.ends: dict[str, str] = {}
        self.fails: dict[str, str] = {}
        self.changed_at: dict[str, str] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        self.attached: dict[str, list[str]] = {}
        self.invalid: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.targets: dict[str, dict[str, Any]] = {}
        self.connectors: list[dict[str, Any]] = []
        self.ports: list[dict[str, Any]] = []
        self.locked_count = 0
        self.power_works = True
        self.has_soft_power = True
        self.is_console_on = False
        self.console_type = 'socat'
        self.console_interface = 'fake-graphical'
        self.console_url = 'tcp://127.0.0.1:9000'
        self.rescue_interface = 'agent'
        self.storage_interface = 'cinder'

    # What a test says

    def add(self, **fields: Any) -> None:
        """Enroll a node, available and powered on unless told."""
        values = {
            'uuid': NODE,
            'resource_class': 'gold',
            'provision_state': 'available',
            'power_state': 'power on',
            **fields,
        }
        self.nodes[values['uuid']] = NodeFacts(**values)
        # Nova has deployed what has a server, unless a test says otherwise.
        has_server = values.get('instance_uuid') is not None
        self.infos[values['uuid']] = {HOST_KEY: 'c1'} if has_server else {}
        self.attached[values['uuid']] = []

    def change(self, node: str, **fields: Any) -> None:
        """Let the world, or an operator, change a node."""
        with self.lock:
            self.nodes[node] = dataclasses.replace(self.nodes[node], **fields)
            if 'provision_state' in fields:
                now = timeutils.utcnow(with_timezone=True)
                self.changed_at[node] = now.isoformat(timespec='seconds')

    def settle(self, node: str) -> None:
        """Let Ironic finish what it is doing with a node."""
        with self.lock:
            if node in self.nodes:
                self._settle(node)

    def _settle(self, node: str) -> None:
        if self.nodes[node].reservation is not None:
            self.change(node, reservation=None)
        facts = self.nodes[node]
        if facts.target_power_state is not None:
            self._finish_power(facts)
        end = self.ends.pop(node, None)
        if end is None:
            return
        failure = self.fails.get(end)
        if failure is not None:
            self.change(
                node, provision_state=failure, last_error='it is broken'
            )
            return
        self.change(node, provision_state=end)
        if end == 'active':
            self.change(node, power_state='power on')
        # A deploy on hold that is aborted ends so, and is not cleaned.
        if end in ('cleaning', 'deploy failed'):
            self.change(node, instance_uuid=None, power_state='power off')
            self.infos[node] = {}
            self.attached[node] = []

    def _finish_power(self, facts: NodeFacts) -> None:
        if self.power_works:
            self.change(facts.uuid, power_state=facts.target_power_state)
        else:
            self.change(facts.uuid, last_error='BMC is dead')
        self.change(facts.uuid, target_power_state=None)

    def names(self) -> list[str]:
        """Return the names of the requests that change something."""
        return [str(call[0]) for call in self.calls]

    # What the client offers

    def read_node(self, node: str) -> NodeFacts:
        """See IronicClient."""
        return self._find(node)

    def _find(self, node: str) -> NodeFacts:
        """Return a node; unlike ``read_node`` this is no request."""
        if node not in self.nodes:
            raise errors.NodeNotFound(f'no node {node}')
        return self.nodes[node]

    def wait_for_lease(self) -> None:
        """See IronicClient."""

    def check_access(self, timeout_s: float) -> None:
        """See IronicClient."""

    def can_list_all_nodes(self) -> bool:
        """See IronicClient."""
        return True

    def read_node_of_instance(self, instance_uuid: str) -> NodeFacts | None:
        """See IronicClient."""
        found = (
            facts
            for facts in self.nodes.values()
            if facts.instance_uuid == instance_uuid
        )
        return next(found, None)

    def read_microversion(self) -> tuple[int, int]:
        """See IronicClient."""
        return (1, 95)

    def read_fields(self, node: str, fields: list[str]) -> Mapping[str, Any]:
        """See IronicClient."""
        facts = self.read_node(node)
        return {
            'instance_uuid': facts.instance_uuid,
            'provision_state': facts.provision_state,
            'instance_info': dict(self.infos[node]),
            'driver_internal_info': {'vnc_host': '127.0.0.1', 'vnc_port': 7},
            'rescue_interface': self.rescue_interface,
            'console_interface': self.console_interface,
            'storage_interface': self.storage_interface,
            'provision_updated_at': self.changed_at.get(node),
        }

    def validate_node(self, node: str) -> Mapping[str, Any]:
        """See IronicClient."""
        return {
            name: {
                'result': name not in self.invalid,
                'reason': self.invalid.get(name),
            }
            for name in ('deploy', 'power', 'storage')
        }

    def _changing(self, *call: Any) -> None:
        self.calls.append(call)
        facts = self._find(call[1])
        if self.locked_count or facts.reservation:
            self.locked_count = max(0, self.locked_count - 1)
            raise errors.NodeLocked('node is locked by host x')
        if str(call[0]) in self.refused:
            raise errors.IronicRefused(self.refused[str(call[0])])

    def _patching(self, *call: Any) -> None:
        self._changing(*call)
        facts = self.nodes[call[1]]
        if call[0] == 'release' and facts.maintenance:
            return
        if facts.provision_state in ironic_machine.IN_TRANSITION:
            raise errors.NodeLocked('a state transition is in progress')

    def reserve_node(self, node: str, instance_uuid: str) -> NodeFacts:
        """See IronicClient."""
        self._patching('reserve', node, instance_uuid)
        if self.nodes[node].instance_uuid not in (None, instance_uuid):
            raise errors.NodeAssociated('node is associated')
        other = self.read_node_of_instance(instance_uuid)
        if other is not None and other.uuid != node:
            raise errors.NodeAssociated('instance is associated')
        self.change(node, instance_uuid=instance_uuid)
        return self.nodes[node]

    def release_node(self, node: str, instance_uuid: str) -> None:
        """See IronicClient."""
        self._patching('release', node, instance_uuid)
        if self.nodes[node].instance_uuid == instance_uuid:
            self.change(node, instance_uuid=None)

    def patch_node(
        self, node: str, patch: list[Mapping[str, Any]]
    ) -> NodeFacts:
        """See IronicClient."""
        self._patching('patch', node)
        for change in patch:
            parts = change['path'].strip('/').split('/')
            if change['op'] == 'remove':
                del self.infos[node][parts[1]]
            elif len(parts) == 1:
                self.infos[node] = dict(change['value'])
            else:
                self.infos[node][parts[1]] = change['value']
        return self.nodes[node]

    def set_provision_state(
        self, node: str, target: str, **arguments: Any
    ) -> None:
        """See IronicClient."""
        self._changing(target, node, arguments)
        state = str(self.nodes[node].provision_state)
        allowed = {**ironic_machine.ALLOWED[target]}
        if target == 'deleted':
            allowed['brand new state'] = ('deleting', 'cleaning')
        if state not in allowed:
            raise errors.IronicRefused(f'{target} not possible in {state}')
        at_once, end = allowed[state]
        with self.lock:
            self.change(node, provision_state=at_once, last_error=None)
            self.ends[node] = end

    def set_power_state(
        self,
        node: str,
        target: str,
        *,
        soft: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        """See IronicClient."""
        self._changing(f'soft {target}' if soft else target, node, timeout_s)
        state = self.nodes[node].provision_state
        if state in ironic_machine.NO_POWER:
            raise errors.IronicRefused(f'power {target} impossible in {state}')
        if soft and not self.has_soft_power:
            raise errors.IronicRefused('soft power is not supported')
        wanted = 'power off' if target == 'off' else 'power on'
        self.change(node, target_power_state=wanted, last_error=None)

    def list_ports(self, node: str) -> list[dict[str, Any]]:
        """See IronicClient."""
        return self.ports

    def list_portgroups(self, node: str) -> list[dict[str, Any]]:
        """See IronicClient."""
        return []

    def list_vifs(self, node: str) -> list[str]:
        """See IronicClient."""
        return list(self.attached[node])

    def list_nodes_of_all_pools(self) -> Iterator[NodeFacts]:
        """See IronicClient."""
        yield from self.nodes.values()

    def list_all_vifs(self) -> dict[str, tuple[str, ...]]:
        """See IronicClient."""
        return {n: tuple(vifs) for n, vifs in self.attached.items() if vifs}

    def list_all_volume_targets(self) -> dict[str, tuple[str, ...]]:
        """See IronicClient."""
        found: dict[str, tuple[str, ...]] = {}
        for uuid_, each in self.targets.items():
            node = each['node_uuid']
            found[node] = (*found.get(node, ()), uuid_)
        return found

    def attach_vif(self, node: str, vif: str) -> None:
        """See IronicClient."""
        self._changing('vif_attach', node, vif)
        if vif in self.attached[node]:
            raise errors.IronicRefused('VIF is attached already')
        self.attached[node].append(vif)
        for port in self.ports:
            if 'internal_info' not in port:
                port['internal_info'] = {'tenant_vif_port_id': vif}
                break

    def detach_vif(self, node: str, vif: str) -> None:
        """See IronicClient."""
        self._changing('vif_detach', node, vif)
        if vif not in self.attached[node]:
            raise errors.IronicRefused('VIF is not attached')
        self.attached[node].remove(vif)

    def inject_nmi(self, node: str) -> None:
        """See IronicClient."""
        self._changing('nmi', node)

    def read_console(self, node: str) -> Mapping[str, Any]:
        """See IronicClient."""
        info = {'type': self.console_type, 'url': self.console_url}
        return {'console_enabled': self.is_console_on, 'console_info': info}

    def set_console_mode(self, node: str, enabled: bool) -> None:
        """See IronicClient."""
        self._changing('console', node, enabled)
        self.is_console_on = enabled

    def list_volume_connectors(self, node: str) -> list[dict[str, Any]]:
        """See IronicClient."""
        self.read_node(node)
        return self.connectors

    def list_volume_targets(self, node: str) -> list[dict[str, Any]]:
        """See IronicClient."""
        self.read_node(node)
        return [t for t in self.targets.values() if t['node_uuid'] == node]

    def create_volume_target(self, node: str, **fields: Any) -> str:
        """See IronicClient."""
        self._changing('create_volume_target', node, fields['volume_id'])
        if not isinstance(fields['boot_index'], int):
            raise errors.IronicRefused('None is not of type integer')
        taken = {one['boot_index'] for one in self.list_volume_targets(node)}
        if fields['boot_index'] in taken:
            raise errors.IronicRefused('boot index is there already')
        target = str(uuid.uuid4())
        self.targets[target] = {'uuid': target, 'node_uuid': node, **fields}
        return target

    def delete_volume_target(self, target: str) -> None:
        """See IronicClient."""
        if target not in self.targets:
            return
        node = self.targets[target]['node_uuid']
        self._changing('delete_volume_target', node, target)
        facts = self.nodes[node]
        is_on = facts.power_state != 'power off'
        if is_on and facts.provision_state not in ironic_machine.MAY_GO:
            raise errors.IronicRefused('volume target deletion: is on')
        del self.targets[target]
