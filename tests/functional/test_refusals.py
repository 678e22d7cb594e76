# SPDX-License-Identifier: Apache-2.0
"""What bare metal cannot do is refused, and nothing has happened.

Each request goes through the real nova-api and nova-conductor. Afterwards the
server looks as it did before to the last field, Ironic was asked for no
change, Placement and Glance have what they had.
"""

from collections.abc import Mapping
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.tests.functional.api import client as api_client

from ironic_compute.manager.refusals import REASONS
from tests.functional import base, pool


class RefusalsTest(pool.PoolTestCase):
    """One server, to which everything impossible is done."""

    def setUp(self) -> None:
        """Boot a server and note how everything is."""
        super().setUp()
        self.server = self.boot(self.flavor)
        self.before = self._everything()

    def _everything(self) -> Mapping[str, Any]:
        shown = dict(self.api.get_server(self.server['id']))
        shown.pop('updated')
        allocations = {
            provider: each['resources']
            for provider, each in self.allocations(self.server).items()
        }
        return {
            'server': shown,
            'allocations': allocations,
            'ironic': list(self.ironic.calls),
            'images': sorted(self.glance.images),
            'volumes': len(self.api.get_server_volumes(self.server['id'])),
        }

    def _assert_untouched(self, what: str) -> None:
        self._wait_for_server_parameter(
            self.server, {'OS-EXT-STS:task_state': None}
        )
        after = self._everything()
        for part, before in self.before.items():
            self.assertEqual(before, after[part], f'{what}: {part}')

    def _told(self) -> str:
        """Return what the events of the last action say."""
        return ' '.join(
            str(event.get('details'))
            for event in self.last_events(self.server)
        )

    def _assert_refused(
        self, sentence: str, action: str, argument: Any = None
    ) -> None:
        self.action(self.server, action, argument)
        self.until(lambda: sentence in self._told(), f'{action}: a sentence')
        self._assert_untouched(action)

    def test_pause_and_suspend_are_refused(self) -> None:
        """Pause and suspend are refused; the machine keeps running."""
        for action in ('pause', 'suspend'):
            self._assert_refused(REASONS[f'{action}_instance'], action)

    def test_snapshots_are_refused(self) -> None:
        """Snapshots are refused; they leave no image and power off none."""
        for name, action, argument in (
            ('snapshot', 'createImage', {'name': 'one'}),
            (
                'backup',
                'createBackup',
                {'name': 'one', 'backup_type': 'daily', 'rotation': 1},
            ),
            ('shelve', 'shelve', None),
        ):
            self._assert_refused(REASONS[f'{name}_instance'], action, argument)

    def test_resize_and_migration_are_refused(self) -> None:
        """A refused resize changes no flavor or host and takes no node."""
        other = self.make_flavor()
        for action, argument in (
            ('resize', {'flavorRef': other['id']}),
            ('migrate', None),
        ):
            self._assert_refused(REASONS['prep_resize'], action, argument)
            self.assertEqual(
                'error',
                self.api.get_migrations()[0]['status'],
            )
        self.until(
            lambda: self.offered() == self.NODES_COUNT - 1, 'others offered'
        )

    def test_refused_resize_changes_no_later_unshelve(self) -> None:
        """nova-conductor saves the flavor for the scheduler all the same."""
        request = self._build_server(
            image_uuid=base.IMAGE_ID,
            flavor_id=self.flavor['id'],
            networks='none',
        )
        root = {'imageRef': '', 'block_device_mapping_v2': [base.ROOT]}
        asked = self.api.post_server({'server': {**request, **root}})
        server = self._wait_for_state_change(asked, 'ACTIVE')
        other = self.make_flavor()
        self.action(server, 'resize', {'flavorRef': other['id']})
        self.until(
            lambda: self._scheduled_flavor(server) == other['id'], 'a resize'
        )
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None}
        )
        self.action(server, 'shelve')
        self._wait_for_state_change(server, 'SHELVED_OFFLOADED')
        self.assertEqual(self.flavor['id'], self._scheduled_flavor(server))
        self.action(server, 'unshelve')
        self._wait_for_state_change(server, 'ACTIVE')

    def _scheduled_flavor(self, server: Mapping[str, Any]) -> str:
        spec = objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id']
        )
        return str(spec.flavor.flavorid)

    def test_live_migration_is_refused(self) -> None:
        """Live migration is refused, whatever its destination."""
        here = self.server['OS-EXT-SRV-ATTR:host']
        there = {'c1': 'c2', 'c2': 'c1'}[here]
        for host in (there, None):
            self._assert_refused(
                REASONS['check_can_live_migrate_destination'],
                'os-migrateLive',
                {'host': host, 'block_migration': 'auto'},
            )

    def test_evacuation_is_refused(self) -> None:
        """Evacuation is refused, so a host that is down keeps its servers."""
        here = self.server['OS-EXT-SRV-ATTR:host']
        service = self.api.get_services(binary='nova-compute', host=here)[0]
        self.api.put_service(service['id'], {'forced_down': True})
        self.before = self._everything()
        self._assert_refused(REASONS['evacuate'], 'evacuate', {})
        self.api.put_service(service['id'], {'forced_down': False})

    def test_password_and_console_log_are_refused(self) -> None:
        """The refusal says that only the operating system can do it."""
        refused = self.assertRaises(
            api_client.OpenStackApiException,
            self.action,
            self.server,
            'changePassword',
            {'adminPass': 'x'},
        )
        self.assertEqual(409, refused.response.status_code)
        self.assertIn(REASONS['set_admin_password'], str(refused))
        refused = self.assertRaises(
            api_client.OpenStackApiException,
            self.action,
            self.server,
            'os-getConsoleOutput',
            {},
        )
        self.assertEqual(501, refused.response.status_code)
        self._assert_untouched('changePassword')

    def test_volume_of_a_running_server_is_refused(self) -> None:
        """A node without a storage interface takes no volume.

        The refusal gives the reason and leaves no volume attachment.
        """
        self.ironic.storage_interface = 'noop'
        # The newest API answers before the compute service was asked.
        self.api.microversion = '2.100'
        refused = self.assertRaises(
            api_client.OpenStackApiException,
            self.api.post_server_volume,
            self.server['id'],
            {'volumeAttachment': {'volumeId': base.VOLUME_ID}},
        )
        self.assertEqual(400, refused.response.status_code)
        self.assertIn('its storage_interface in Ironic is noop', str(refused))
        self.api.microversion = 'latest'
        self._assert_untouched('attach volume')
        self.assertEqual(
            [], self.cinder.attachment_ids_for_instance(self.server['id'])
        )

    def test_volume_of_the_creation_is_not_detached_while_on(self) -> None:
        """It is neither detached nor replaced; a stopped server lets it go."""
        disks = [
            {
                'source_type': source,
                'destination_type': destination,
                'boot_index': index,
                'uuid': uuid,
            }
            for source, destination, index, uuid in (
                ('image', 'local', 0, base.IMAGE_ID),
                ('volume', 'volume', -1, base.DATA_VOLUME_ID),
            )
        ]
        request = self._build_server(
            image_uuid=base.IMAGE_ID,
            flavor_id=self.flavor['id'],
            networks='none',
        )
        body = {**request, 'block_device_mapping_v2': disks}
        asked = self.api.post_server({'server': body})
        self.server = self._wait_for_state_change(asked, 'ACTIVE')
        self.before = self._everything()
        targets = dict(self.ironic.targets)
        self.assertEqual(1, len(targets))
        path = (
            f'/servers/{self.server["id"]}/os-volume_attachments/'
            f'{base.DATA_VOLUME_ID}'
        )
        replaced = {'volumeAttachment': {'volumeId': base.OTHER_VOLUME_ID}}
        for name, sentence, request_it in (
            (
                'detach_volume',
                'stop the server first',
                lambda: self.api.api_delete(path),
            ),
            (
                'swap_volume',
                REASONS['swap_volume'],
                lambda: self.api.api_put(path, replaced),
            ),
        ):
            request_it()
            self.until(lambda s=sentence: s in self._told(), name)
            self._assert_untouched(name)
            self.assertEqual(targets, self.ironic.targets)
        self.action(self.server, 'os-stop')
        self._wait_for_state_change(self.server, 'SHUTOFF')
        # Nova's manager compares it with the host of the server.
        self.flags(host=self.server['OS-EXT-SRV-ATTR:host'])
        self.api.api_delete(path)
        self.until(lambda: not self.ironic.targets, 'its target gone')
        self.until(
            lambda: not self.api.get_server_volumes(self.server['id']),
            'the volume gone',
        )
        self.assertEqual(
            [], self.cinder.attachment_ids_for_instance(self.server['id'])
        )

    def test_rebuild_with_certificates_is_refused(self) -> None:
        """No node can check them; the next rebuild without any is done."""
        image = '76fa36fc-c930-4bf3-8c8a-ea2a2420deb6'
        former = self.server['image']['id']
        request = {'imageRef': image}
        certificates = {'trusted_image_certificates': ['one']}
        self.action(self.server, 'rebuild', {**request, **certificates})
        self.until(lambda: 'certificate' in self._told(), 'a sentence')
        self._assert_has_image(former)
        self.action(self.server, 'rebuild', request)
        self._assert_has_image(image)

    def _assert_has_image(self, image: str) -> None:
        self._wait_for_server_parameter(
            self.server, {'OS-EXT-STS:task_state': None}
        )
        shown = self.api.get_server(self.server['id'])
        self.assertEqual(
            ('ACTIVE', image, None),
            (
                shown['status'],
                shown['image']['id'],
                shown['trusted_image_certificates'],
            ),
        )

    def test_rescue_without_an_interface_is_refused(self) -> None:
        """A node without a rescue interface is not powered off."""
        self.ironic.rescue_interface = 'no-rescue'
        self._assert_refused('has no rescue interface', 'rescue', {})
