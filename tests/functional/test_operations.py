# SPDX-License-Identifier: Apache-2.0
"""What users do with servers, through the real nova-api.

Neutron, Glance and Cinder are Nova's own fixtures for them. Each test does
several things to its servers, because starting the workers is what costs.
"""

import base64
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import fixtures
from nova import context as nova_context
from nova import objects
from nova.compute import power_state, rpcapi
from nova.tests.functional.api import client as api_client

from ironic_compute import errors
from ironic_compute.manager import refusals
from resource_tracker.node import NodeId
from tests.functional import base, pool

# Another image of Glance's fixture, for the same architecture.
_OTHER_IMAGE = '76fa36fc-c930-4bf3-8c8a-ea2a2420deb6'


class OperationsTest(pool.PoolTestCase):
    """Two hosts, eight nodes."""

    def setUp(self) -> None:
        """Have the rights of an operator."""
        super().setUp()
        self.context = nova_context.get_admin_context()

    def _create(self, status: str = 'ACTIVE', **fields: Any) -> Any:
        """Create a server as a user who asks for more than an image."""
        hints = fields.pop('hints', None)
        request = self._build_server(
            image_uuid=base.IMAGE_ID,
            flavor_id=self.flavor['id'],
            networks='none',
        )
        body = {'server': {**request, **fields}}
        if hints is not None:
            body['os:scheduler_hints'] = hints
        return self._wait_for_state_change(self.api.post_server(body), status)

    def _vifs(self, server: Mapping[str, Any]) -> list[str]:
        return self.ironic.list_vifs(self.node_of(server))

    def _done(self, server: Mapping[str, Any]) -> None:
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None}
        )

    def _sent(self, name: str) -> list[Any]:
        return [call for call in self.ironic.calls if call[0] == name]

    def test_ports_are_attached_and_detached(self) -> None:
        """VIFs are attached to the node and are in the config drive."""
        first = self.neutron.port_1['id']
        second = self.neutron.add_port(self.neutron.port_2)
        server = self._create(networks=[{'port': first}], config_drive=True)
        self.assertEqual([first], self._vifs(server))
        ((_, _, arguments),) = self._sent('active')
        drive = arguments['configdrive']
        self.assertEqual(server['id'], drive['meta_data']['uuid'])
        (link,) = drive['network_data']['links']
        self.assertEqual(first, link['vif_id'])
        self._attach_interface(server, second)
        self.assertEqual([first, second], self._vifs(server))
        self._detach_interface(server, first)
        self.assertEqual([second], self._vifs(server))
        node = self.node_of(server)
        self.delete(server)
        self.assertEqual([], self.ironic.list_vifs(node))

    def test_rescue_nmi_lock_rebuild_and_soft_delete(self) -> None:
        """Rescue, NMI, lock, rebuild and soft delete work."""
        server = self.boot(self.flavor)
        self._rescue_server(server)
        self.action(server, 'unrescue')
        self._wait_for_state_change(server, 'ACTIVE')
        self.action(server, 'trigger_crash_dump')
        self.until(lambda: self._sent('nmi'), 'an NMI')
        self.action(server, 'lock')
        refused = self.assertRaises(
            api_client.OpenStackApiException,
            self.api_fixture.api.post_server_action,
            server['id'],
            {'os-stop': None},
        )
        self.assertEqual(409, refused.response.status_code)
        self.action(server, 'unlock')
        self._rebuild_at_each_version(server)
        self._delete_softly(server)

    def _rebuild_at_each_version(self, server: Mapping[str, Any]) -> None:
        """Bug 2127017: from 2.93 on stock Nova refuses to rebuild."""
        node = self.node_of(server)
        versions = ('2.1', '2.92', '2.93', 'latest')
        for count, version in enumerate(versions, 1):
            self.api.microversion = version
            self.action(server, 'rebuild', {'imageRef': base.IMAGE_ID})
            self.until(
                lambda count=count: len(self._sent('rebuild')) == count,
                f'a rebuild at {version}',
            )
            self.api.microversion = 'latest'
            self._done(server)
            self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(node, self.node_of(server))
        self.assertEqual([node], list(self.allocations(server)))

    def test_refused_rebuild_leaves_the_server_as_it_was(self) -> None:
        """Its status and image are the former ones; the fault is recorded."""
        server = self.boot(self.flavor)
        node = self.node_of(server)
        info = dict(self.ironic.infos[node])
        row = self._row(server)
        self.ironic.refused['rebuild'] = 'the node is in maintenance'
        for status in ('ACTIVE', 'SHUTOFF'):
            if status == 'SHUTOFF':
                self.action(server, 'os-stop')
                self._wait_for_state_change(server, status)
            sent_count = len(self._sent('rebuild'))
            self.action(server, 'rebuild', {'imageRef': _OTHER_IMAGE})
            self.until(
                lambda count=sent_count: len(self._sent('rebuild')) > count,
                'a rebuild',
            )
            self._done(server)
            shown = self.api.get_server(server['id'])
            self.assertEqual(status, shown['status'])
            self.assertEqual(base.IMAGE_ID, shown['image']['id'])
        self.assertEqual(info, self.ironic.infos[node])
        self.assertEqual(
            row.system_metadata, self._row(server).system_metadata
        )
        faults = objects.InstanceFaultList.get_by_instance_uuids(
            self.context, [server['id']]
        )
        self.assertIn('in maintenance', faults[0].message)
        self.assertEqual([node], list(self.allocations(server)))
        self.ironic.refused.clear()
        self.action(server, 'rebuild', {'imageRef': _OTHER_IMAGE})
        self.until(lambda: self.ironic.infos[node] != info, 'a rebuild')
        self._done(server)
        shown = self.api.get_server(server['id'])
        self.assertEqual(_OTHER_IMAGE, shown['image']['id'])

    def _row(self, server: Mapping[str, Any]) -> Any:
        return objects.Instance.get_by_uuid(self.context, server['id'])

    def _delete_softly(self, server: Mapping[str, Any]) -> None:
        self.flags(reclaim_instance_interval=3600)
        node = self.node_of(server)
        self.api.delete_server(server['id'])
        self._wait_for_state_change(server, 'SOFT_DELETED')
        self.assertEqual('power off', self.ironic.nodes[node].power_state)
        self._restore_in_vain(server)
        self.action(server, 'restore')
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual('power on', self.ironic.nodes[node].power_state)
        self.action(server, 'forceDelete')
        self._wait_until_deleted(server)

    def _restore_in_vain(self, server: Mapping[str, Any]) -> None:
        """A restore that fails does not let Nova destroy the server."""
        self.ironic.refused['on'] = 'its BMC does not answer'
        self.action(server, 'restore')
        self._done(server)
        self.ironic.refused.clear()
        for host in self.computes:
            self.manager(host)._reclaim_queued_deletes(self.context)
        shown = self.api.get_server(server['id'])
        self.assertEqual('SOFT_DELETED', shown['status'])
        self.assertIsNone(shown['OS-EXT-STS:task_state'])

    def test_stop_start_and_reboot(self) -> None:
        """Stop, start and reboot work; Nova shows Ironic's power state."""
        server = self.boot(self.flavor)
        for action, argument, request, status in (
            ('os-stop', None, 'soft off', 'SHUTOFF'),
            ('os-start', None, 'on', 'ACTIVE'),
            ('reboot', {'type': 'SOFT'}, 'soft reboot', 'ACTIVE'),
            ('reboot', {'type': 'HARD'}, 'reboot', 'ACTIVE'),
        ):
            self.ironic.calls.clear()
            self.action(server, action, argument)
            self.until(lambda: self.ironic.calls, f'a call for {action}')
            self._done(server)
            self._wait_for_state_change(server, status)
            self.assertEqual([request], self.ironic.names())
        self.ironic.calls.clear()
        node = self.node_of(server)
        for tag, power, status in (
            ('POWER_OFF', 'power off', 'SHUTOFF'),
            ('POWER_ON', 'power on', 'ACTIVE'),
        ):
            self.ironic.change(node, power_state=power)
            event = {'name': 'power-update', 'tag': tag}
            self.api.api_post(
                '/os-server-external-events',
                {'events': [{**event, 'server_uuid': server['id']}]},
            )
            self._wait_for_state_change(server, status)
        self.assertEqual([], self.ironic.calls)

    def test_disks_keys_and_user_data_reach_ironic(self) -> None:
        """Disks, keys and user data reach Ironic, at a rebuild too."""
        flavor = self._flavor_with_disks()
        # Later ones want a key that the user has made.
        self.api.microversion = '2.1'
        key = self.api.api_post(
            '/os-keypairs', {'keypair': {'name': 'mine'}}
        ).body['keypair']
        self.api.microversion = 'latest'
        text = '#!/bin/sh\necho hello\n'
        server = self._create(
            flavorRef=flavor,
            config_drive=True,
            key_name='mine',
            user_data=base64.b64encode(text.encode()).decode(),
        )
        info = self.ironic.infos[self.node_of(server)]
        ordered = {'root_gb': '20', 'swap_mb': '64', 'ephemeral_gb': '2'}
        self.assertEqual(ordered, {key: info[key] for key in ordered})
        ((_, _, arguments),) = self._sent('active')
        drive = arguments['configdrive']
        self.assertEqual(text, drive['user_data'])
        keys = drive['meta_data']['public_keys']
        self.assertEqual({'mine': key['public_key']}, keys)
        self.action(
            server,
            'rebuild',
            {'imageRef': _OTHER_IMAGE, 'preserve_ephemeral': True},
        )
        self.until(lambda: self._sent('rebuild'), 'a rebuild')
        self._wait_for_state_change(server, 'ACTIVE')
        info = self.ironic.infos[self.node_of(server)]
        self.assertEqual(_OTHER_IMAGE, info['image_source'])
        self.assertEqual('True', info['preserve_ephemeral'])
        ((_, _, arguments),) = self._sent('rebuild')
        self.assertEqual(text, arguments['configdrive']['user_data'])

    def _flavor_with_disks(self) -> str:
        specs = self.flavor['extra_specs']
        created: str = self._create_flavor(
            vcpu=1,
            memory_mb=1,
            disk=20,
            ephemeral=2,
            swap=64,
            extra_spec=dict(specs),
        )
        return created

    def test_consoles(self) -> None:
        """A second request for a console does not reset the console."""
        self.flags(enabled=True, group='serial_console')
        self.flags(enabled=True, group='vnc')
        server = self.boot(self.flavor)
        self.ironic.is_console_on = True
        for _ in range(2):
            console = self._console(server, 'serial', 'serial')
            self.assertIn('ws://', console['url'])
        self.assertEqual(0, len(self._sent('console')))
        self.ironic.is_console_on = False
        self.ironic.console_type = 'vnc'
        for _ in range(2):
            console = self._console(server, 'vnc', 'novnc')
            self.assertIn('vnc', console['url'])
        self.assertEqual(1, len(self._sent('console')))
        self.ironic.console_type = 'none'
        self.assertRaises(
            api_client.OpenStackApiException,
            self._console,
            server,
            'vnc',
            'novnc',
        )

    def _console(
        self, server: Mapping[str, Any], protocol: str, kind: str
    ) -> Any:
        answer = self.api.api_post(
            f'/servers/{server["id"]}/remote-consoles',
            {'remote_console': {'protocol': protocol, 'type': kind}},
        )
        return answer.body['remote_console']

    def test_volumes_are_exported_to_the_address_on_their_port(self) -> None:
        """Cinder gets the address in the storage network from a slow Neutron.

        The node has two ports, and the second one is in the storage network.
        Data volumes, whose boot index is -1 or none, get the next numbers.
        """
        ports = [
            self.neutron.add_port(self.neutron.port_2),
            self._add_storage_port('192.168.2.77'),
        ]
        self._slow_down_neutron()
        self.ironic.ports = [{'address': 'aa:01'}, {'address': 'aa:02'}]
        self.ironic.connectors = [
            {'type': 'iqn', 'connector_id': 'iqn.one'},
            {'type': 'mac', 'connector_id': 'AA:02'},
        ]
        data = {'source_type': 'volume', 'destination_type': 'volume'}
        server = self._create(
            imageRef='',
            block_device_mapping_v2=[
                base.ROOT,
                {**data, 'boot_index': -1, 'uuid': base.DATA_VOLUME_ID},
                {**data, 'boot_index': None, 'uuid': base.OTHER_VOLUME_ID},
            ],
            networks=[{'port': port} for port in ports],
        )
        self.assertEqual(ports, self._vifs(server))
        volumes = base.VOLUME_ID, base.DATA_VOLUME_ID, base.OTHER_VOLUME_ID
        for volume in volumes:
            (connector,) = self._connectors(volume)
            self.assertEqual('192.168.2.77', connector['ip'])
            self.assertEqual('iqn.one', connector['initiator'])
        indexes = {
            target['volume_id']: target['boot_index']
            for target in self.ironic.targets.values()
        }
        self.assertEqual(0, indexes[base.VOLUME_ID])
        self.assertEqual({0, 1, 2}, set(indexes.values()))
        self.assertEqual(set(volumes), set(indexes))
        node = self.node_of(server)
        self.delete(server)
        self.assertEqual([], self.ironic.list_vifs(node))
        self.assertEqual({}, self.ironic.targets)
        self.assertEqual(
            [], self.cinder.attachment_ids_for_instance(server['id'])
        )

    def _add_storage_port(self, address: str) -> str:
        """Create a port with an address in another network."""
        network, subnet = self.neutron.network_2, self.neutron.subnet_2
        self.neutron._networks.setdefault(network['id'], network)
        self.neutron._subnets[subnet['id']] = {
            **subnet,
            'cidr': '192.168.2.0/24',
            'gateway_ip': '192.168.2.1',
        }
        return self.neutron.add_port(
            {
                **self.neutron.port_2,
                'id': 'ad3de7d3-1e0c-4d6c-8f4a-4f9a0a6a7e11',
                'mac_address': '00:0c:29:0d:11:99',
                'network_id': network['id'],
                'fixed_ips': [
                    {'ip_address': address, 'subnet_id': subnet['id']}
                ],
            }
        )

    def _slow_down_neutron(self) -> None:
        update_port = self.neutron.update_port

        def update_late(*args: Any, **kwargs: Any) -> Any:
            time.sleep(1)
            return update_port(*args, **kwargs)

        self.neutron.update_port = update_late

    def test_volume_of_a_running_server_comes_and_goes(self) -> None:
        """Cinder exports it to the node; Ironic is not asked to change it."""
        self.ironic.connectors = [
            {'type': 'iqn', 'connector_id': 'iqn.one'},
            {'type': 'ip', 'connector_id': '192.0.2.9'},
        ]
        self.ironic.storage_interface = 'external'
        server = self.boot(self.flavor)
        # Nova's manager compares it with the host of the server.
        self.flags(host=self._host(server))
        self.ironic.calls.clear()
        for _ in range(2):
            connector = self._attach_volume(server)
            self.assertEqual('iqn.one', connector['initiator'])
            self.assertEqual('192.0.2.9', connector['ip'])
            self.action(server, 'reboot', {'type': 'HARD'})
            self._done(server)
            self.api.delete_server_volume(server['id'], base.VOLUME_ID)
            self.until(lambda: not self._connectors(), 'the volume detached')
        self.assertEqual(['reboot', 'reboot'], self.ironic.names())
        self.assertEqual([], self.api.get_server_volumes(server['id']))
        self._attach_volume(server)
        self.delete(server)
        self.assertEqual(
            [], self.cinder.attachment_ids_for_instance(server['id'])
        )

    def _attach_volume(self, server: Mapping[str, Any]) -> Any:
        """Attach a volume; return the connector that Cinder got."""
        body = {'volumeAttachment': {'volumeId': base.VOLUME_ID}}
        self.api.post_server_volume(server['id'], body)
        self.until(lambda: all(self._connectors() or [None]), 'an export')
        (connector,) = self._connectors()
        return connector

    def _connectors(self, volume: str = base.VOLUME_ID) -> list[Any]:
        """Return the connectors of a volume's attachments in Cinder."""
        attachments = self.cinder.volume_to_attachment[volume]
        return [one['connector'] for one in attachments.values()]

    def test_root_disk_on_a_volume(self) -> None:
        """Ironic has the volume target while the server has its node."""
        server = self._create(imageRef='', block_device_mapping_v2=[base.ROOT])
        node = self.node_of(server)
        (target,) = self.ironic.targets.values()
        self.assertEqual(
            (node, base.VOLUME_ID, 0),
            tuple(target[k] for k in ('node_uuid', 'volume_id', 'boot_index')),
        )
        self.assertNotIn('image_source', self.ironic.infos[node])
        self._refuse_a_rebuild_at_each_version(server)
        self.action(server, 'shelve')
        self._wait_for_state_change(server, 'SHELVED_OFFLOADED')
        self.assertEqual({}, self.ironic.targets)
        self.assertEqual({}, self.allocations(server))
        self.action(server, 'unshelve')
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(1, len(self.ironic.targets))
        self._shelve_once_more(server)
        self.delete(server)
        self.assertEqual({}, self.ironic.targets)
        self.assertEqual(
            [], self.cinder.attachment_ids_for_instance(server['id'])
        )

    def _shelve_once_more(self, server: Mapping[str, Any]) -> None:
        """The node it was unshelved on takes other builds then."""
        node = NodeId(self.node_of(server))
        held_nodes = self.components(self._host(server)).held_nodes
        self.assertFalse(held_nodes.is_free(node))
        self.action(server, 'shelve')
        self._wait_for_state_change(server, 'SHELVED_OFFLOADED')
        self.until(lambda: held_nodes.is_free(node), 'its node free')

    def test_unshelving_sent_to_the_former_holder_goes_on(self) -> None:
        """Unshelving works if the node changed its host meanwhile."""
        server = self._create(imageRef='', block_device_mapping_v2=[base.ROOT])
        self.action(server, 'shelve')
        self._wait_for_state_change(server, 'SHELVED_OFFLOADED')
        sent = self._lead_the_first_unshelving_astray()
        self.action(server, 'unshelve')
        self._wait_for_state_change(server, 'ACTIVE')
        former, holder = sent
        self.assertNotEqual(former, holder)
        self.assertEqual(holder, self._host(server))
        self.assertIn(self.node_of(server), self.held(holder))
        self.assertEqual([self.node_of(server)], [*self.allocations(server)])
        self.delete(server)

    def _lead_the_first_unshelving_astray(self) -> list[str]:
        """Have the conductor send one to the wrong host.

        :returns: grows by each host that one is sent to
        """
        sent: list[str] = []
        real = rpcapi.ComputeAPI.unshelve_instance

        def unshelve_instance(
            api: Any,
            context: Any,
            instance: Any,
            host: str,
            *rest: Any,
            **kw: Any,
        ) -> Any:
            to = host if sent else {'c1': 'c2', 'c2': 'c1'}[host]
            sent.append(to)
            return real(api, context, instance, to, *rest, **kw)

        self.useFixture(
            fixtures.MonkeyPatch(
                'nova.compute.rpcapi.ComputeAPI.unshelve_instance',
                unshelve_instance,
            )
        )
        return sent

    def _refuse_a_rebuild_at_each_version(
        self, server: Mapping[str, Any]
    ) -> None:
        """A volume is not written anew, and the server goes on with it."""
        before = self.api.get_server(server['id'])
        calls = list(self.ironic.calls)
        for version in ('2.1', '2.92', '2.93', 'latest'):
            self.api.microversion = version
            self.action(server, 'rebuild', {'imageRef': base.IMAGE_ID})
            self.api.microversion = 'latest'
            self.until(self._is_told('rebuild_instance', server), version)
            self._done(server)
            after = self.api.get_server(server['id'])
            self.assertEqual(
                {**before, 'updated': after['updated']}, after, version
            )
        self.assertEqual(calls, self.ironic.calls)

    def _is_told(
        self, name: str, server: Mapping[str, Any]
    ) -> Callable[[], bool]:
        def is_told() -> bool:
            details = [e.get('details') for e in self.last_events(server)]
            return refusals.REASONS[name] in ' '.join(map(str, details))

        return is_told

    def test_bug_1815791_stale_news_stop_no_server(self) -> None:
        """The power sync reads Ironic instead of the node cache.

        Bugs 1793768 and 1842081: nor does any periodic task die of an Ironic
        that is down.
        """
        server = self.boot(self.flavor)
        node = self.node_of(server)
        manager = self.manager(self._host(server))
        row = objects.Instance.get_by_uuid(self.context, server['id'])
        manager._sync_instance_power_state(
            self.context, row, power_state.SHUTDOWN
        )
        self.assertEqual('ACTIVE', self.api.get_server(server['id'])['status'])
        self.assertEqual([], self._sent('off') + self._sent('soft off'))
        self.assertEqual('power on', self.ironic.nodes[node].power_state)
        self._run_periodics_without_ironic(manager)
        self.assertEqual('ACTIVE', self.api.get_server(server['id'])['status'])

    def _run_periodics_without_ironic(self, manager: Any) -> None:
        def fail(*args: Any) -> None:
            raise errors.IronicUnavailable('Ironic did not answer')

        ironic = pool.TheCloud.ironic
        for name in (
            'read_node',
            'read_node_of_instance',
            'list_nodes',
            'list_changed_nodes',
        ):
            setattr(ironic, name, fail)
        for _, task in manager._periodic_tasks:
            task(manager, self.context)

    def test_server_groups_apply_to_hosts(self) -> None:
        """Server groups apply to hosts, and each host has many nodes."""
        first = self._create(min_count=3, max_count=3)
        many = self.api.get_servers()
        for server in many:
            self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(3, len({self.node_of(server) for server in many}))
        self.assertIn(first['id'], {server['id'] for server in many})
        # A host that has three of them has no room for a group of two.
        self._delete_all(many)
        together = self._in_group('affinity', 2)
        self.assertEqual(1, len({self._host(one) for one in together}))
        self.assertEqual(2, len({self.node_of(one) for one in together}))
        self._delete_all(together)
        apart = self._in_group('anti-affinity', 2)
        self.assertEqual(2, len({self._host(one) for one in apart}))
        # A third host there is not.
        group = self.api.get_server_groups()[-1]['id']
        self._create('ERROR', hints={'group': group})

    def _delete_all(self, servers: Iterable[Mapping[str, Any]]) -> None:
        """Delete servers, and wait until each node is offered again."""
        for server in servers:
            self.delete(server)
        self.until(lambda: self.offered() == self.NODES_COUNT, 'all offered')

    def _in_group(self, policy: str, count: int) -> list[Any]:
        group = self.api.post_server_groups({'name': policy, 'policy': policy})
        hints = {'group': group['id']}
        return [self._create(hints=hints) for _ in range(count)]

    def _host(self, server: Mapping[str, Any]) -> str:
        shown = self.api.get_server(server['id'])
        return str(shown['OS-EXT-SRV-ATTR:host'])
