# SPDX-License-Identifier: Apache-2.0
"""A service refuses connections for a while, in mid-request.

The services themselves go on: it is the way from the worker to them that
fails, as for a controller with a bad cable.
"""

import functools
import math
import threading
import types
from collections.abc import Mapping
from typing import Any

import fixtures
from keystoneauth1 import exceptions as ksa_exceptions
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states, vm_states
from nova.volume import cinder

from ironic_compute import errors
from ironic_compute.gate import LeaseGate
from ironic_compute.paths.path_health import NEUTRON, PathHealth
from ironic_compute.paths.repeated_requests import RepeatedRequests
from ironic_compute.paths.traffic import SessionTraffic
from ironic_compute.worker import gated_writes
from tests.functional import base, neutron, pool

# Nova's own client would try for 3.5 s.
_REFUSED_S = 8.0
_OTHER_IMAGE = '76fa36fc-c930-4bf3-8c8a-ea2a2420deb6'
# A busy machine may need longer than the refusals last.
_WAIT_S = 60.0


class _Placement:
    """The ways to Placement, on which some deletes of allocations fail."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.sent: list[str] = []
        self.has_failed = threading.Event()
        self.may_fail = threading.Event()

    def send(self, delete: Any, url: str, **kwargs: Any) -> Any:
        """Send a DELETE; the first ones have no answer."""
        if url.startswith('/allocations/'):
            self.sent.append(url)
            if self._failures:
                assert self.may_fail.wait(120.0)
                self.has_failed.set()
                raise self._failures.pop(0)
        return delete(url, **kwargs)


class PlacementRefusesTest(pool.PoolTestCase):
    """Placement refuses connections while an allocation is deleted."""

    OPTIONS: Mapping[str, Any] = types.MappingProxyType({'unfinished_s': 1.0})

    def setUp(self) -> None:
        """Have a view of Nova's records."""
        super().setUp()
        self.context = nova_context.get_admin_context()

    def _let_fail(self, *failures: Exception) -> _Placement:
        way = _Placement(*failures)
        self.addCleanup(way.may_fail.set)
        for host in self.workers:
            client: Any = self.manager(host).reportclient
            client.delete = functools.partial(way.send, client.delete)
        return way

    def _row(self, server: Any) -> Any:
        return objects.Instance.get_by_uuid(self.context, server['id'])

    def _is_gone(self, server: Any) -> bool:
        try:
            self._row(server)
        except exception.InstanceNotFound:
            return True
        return False

    def test_delete_ends_when_placement_has_deleted_the_allocation(
        self,
    ) -> None:
        """Nova only logs a refusal, and the node would never be free again."""
        server = self.boot(self.flavor)
        way = self._let_fail(
            ksa_exceptions.ConnectFailure('refused'),
            ksa_exceptions.ConnectTimeout('timed out'),
        )
        self.api.delete_server(server['id'])
        way.may_fail.set()
        self.assertTrue(way.has_failed.wait(base.PATIENCE_S))
        self.until(lambda: len(way.sent) == 2, 'another DELETE sent')
        self.assertFalse(self._is_gone(server), 'deleted before its end')
        self.assertNotEqual({}, self.allocations(server))
        self._wait_until_deleted(server)
        self.assertEqual({}, self.allocations(server))
        self.assertEqual([f'/allocations/{server["id"]}'] * 3, way.sent)
        teardowns = [c for c in self.ironic.calls if c[0] == 'deleted']
        self.assertEqual(1, len(teardowns), 'the node was freed once')

    def test_delete_needs_one_request_normally(self) -> None:
        """A DELETE that has an answer is sent once."""
        server = self.boot(self.flavor)
        way = self._let_fail()
        self.delete(server)
        self.assertEqual([f'/allocations/{server["id"]}'], way.sent)
        self.assertEqual({}, self.allocations(server))

    def test_delete_that_was_cut_short_before_its_end_is_done(self) -> None:
        """A worker is killed while its delete waits for Placement."""
        server = self.boot(self.flavor)
        node = self.node_of(server)
        row = self._row(server)
        self.manager(row.host).driver.free_node_of(row)
        row.vm_state, row.task_state = vm_states.DELETED, None
        row.save()
        self.assertEqual([node], list(self.allocations(server)))
        self.until(lambda: self._is_gone(server), 'the server gone')
        self.assertEqual({}, self.allocations(server))
        self.until(lambda: self.offered() == 8, 'its node offered')

    def test_node_of_a_failed_build_is_free_again(self) -> None:
        """A build that Ironic refuses ends without its allocation."""
        way = self._let_fail(ksa_exceptions.ConnectFailure('refused'))
        way.may_fail.set()
        self.ironic.invalid['deploy'] = 'no such image'
        request = self._build_server(
            image_uuid=base.IMAGE_ID,
            flavor_id=self.flavor['id'],
            networks='none',
        )
        server = self.api.post_server({'server': request})
        self.assertTrue(way.has_failed.wait(base.PATIENCE_S))
        self._wait_for_state_change(server, 'ERROR')
        self.until(lambda: not self.allocations(server), 'no allocation')

    def test_shelving_ends_when_placement_has_deleted_the_allocation(
        self,
    ) -> None:
        """The server stays in its task; Nova would shelve it and go on."""
        server = self._boot_from_volume()
        way = self._let_fail(ksa_exceptions.ConnectFailure('refused'))
        self.action(server, 'shelve')
        way.may_fail.set()
        self.assertTrue(way.has_failed.wait(base.PATIENCE_S))
        row = self._row(server)
        self.assertEqual(vm_states.ACTIVE, row.vm_state)
        self.assertEqual(task_states.SHELVING, row.task_state)
        self._wait_for_state_change(server, 'SHELVED_OFFLOADED')
        self.assertEqual({}, self.allocations(server))
        self.assertEqual([f'/allocations/{server["id"]}'] * 2, way.sent)

    def _boot_from_volume(self) -> Any:
        request = self._build_server(
            flavor_id=self.flavor['id'], networks='none', image_uuid=''
        )
        request['block_device_mapping_v2'] = [base.ROOT]
        return self._wait_for_state_change(
            self.api.post_server({'server': request}), 'ACTIVE'
        )


_ROOT_FROM_AN_IMAGE = {
    'boot_index': 0,
    'source_type': 'image',
    'destination_type': 'volume',
    'uuid': base.IMAGE_ID,
    'volume_size': 1,
    'delete_on_termination': True,
}


class CinderRefusesTest(pool.PoolTestCase):
    """Cinder refuses connections after nova-api has accepted a request."""

    def _refuse(self, *requests: str) -> list[Exception]:
        """Refuse the next one of these requests; return what is to come."""
        failures: list[Exception] = [
            exception.CinderConnectionFailed(reason='refused')
        ]
        for name in requests:
            request: Any = getattr(cinder.API, name)
            answer = functools.partial(
                _fail_or_answer, failures, request.side_effect
            )
            self.addCleanup(
                setattr, request, 'side_effect', request.side_effect
            )
            request.side_effect = answer
        return failures

    def _refuse_after(self, last: str, *requests: str) -> list[Any]:
        """Refuse the next request after the last one of nova-api."""
        refused: list[Any] = []
        request: Any = getattr(cinder.API, last)
        answer = request.side_effect

        def answer_and_refuse(*args: Any, **kwargs: Any) -> Any:
            found = answer(*args, **kwargs)
            request.side_effect = answer
            refused.append(self._refuse(*requests))
            return found

        request.side_effect = answer_and_refuse
        return refused

    def test_delete_ends_when_cinder_has_freed_the_volumes(self) -> None:
        """Nova only logs a refusal; its user could not use the volume."""
        request = self._build_server(
            flavor_id=self.flavor['id'], networks='none', image_uuid=''
        )
        request['block_device_mapping_v2'] = [base.ROOT]
        server = self._wait_for_state_change(
            self.api.post_server({'server': request}), 'ACTIVE'
        )
        failures = self._refuse('attachment_delete')
        self.delete(server)
        self.assertEqual([], failures)
        self.assertEqual([], self._attachments(server))

    def test_volumes_come_and_go_when_cinder_answers(self) -> None:
        """Otherwise the volume would be reserved, or detaching, for ever."""
        self.ironic.connectors = [
            {'type': 'iqn', 'connector_id': 'iqn.one'},
            {'type': 'ip', 'connector_id': '192.0.2.9'},
        ]
        self.ironic.storage_interface = 'external'
        server = self.boot(self.flavor)
        # Nova's manager compares it with the host of the server.
        self.flags(host=self._row_of(server).host)
        refused = self._refuse_after(
            'attachment_create', 'get', 'attachment_update'
        )
        body = {'volumeAttachment': {'volumeId': base.VOLUME_ID}}
        self.api.post_server_volume(server['id'], body)
        self.until(lambda: refused == [[]], 'one request refused')
        attached = self.cinder.volume_to_attachment[base.VOLUME_ID]
        self.until(
            lambda: any(one['connector'] for one in attached.values()),
            'the volume attached',
        )
        self._wait_for_events(server, 'Success')
        refused = self._refuse_after(
            'begin_detaching', 'get', 'attachment_delete'
        )
        self.api.delete_server_volume(server['id'], base.VOLUME_ID)
        self.until(lambda: refused == [[]], 'one request refused')
        self._wait_for_events(server, 'Success')
        self.assertEqual([], self._attachments(server))
        self.assertEqual([], self.api.get_server_volumes(server['id']))

    def test_delete_waits_for_a_volume_and_deletes_it(self) -> None:
        """nova-api sends it while Cinder makes the volume, not attached yet.

        Cinder refuses to delete a volume that it makes.
        """
        self.flags(block_device_allocate_retries_interval=1)
        is_made, deleted = threading.Event(), list[str]()
        request: Any = cinder.API.get
        answer = request.side_effect

        def get(*args: Any, **kwargs: Any) -> Any:
            status = {} if is_made.is_set() else {'status': 'creating'}
            return {**answer(*args, **kwargs), **status}

        self.addCleanup(setattr, request, 'side_effect', answer)
        request.side_effect = get
        self.addCleanup(is_made.set)
        client = types.SimpleNamespace(
            volumes=types.SimpleNamespace(delete=deleted.append),
            attachments=self.cinder.attachments,
        )
        self.useFixture(
            fixtures.MonkeyPatch(
                'nova.volume.cinder.cinderclient', lambda *_, **__: client
            )
        )
        self.ironic.storage_interface = 'external'
        create = self._build_server(
            flavor_id=self.flavor['id'], networks='none', image_uuid=''
        )
        create['block_device_mapping_v2'] = [_ROOT_FROM_AN_IMAGE]
        server = self.api.post_server({'server': create})
        self.until(lambda: self._volumes(server), 'the volume named')
        self.api.delete_server(server['id'])
        is_made.set()
        self._wait_until_deleted(server)
        self.assertEqual(list(self.cinder.volumes), deleted)
        self.assertEqual([], self._attachments(server))

    def _volumes(self, server: Any) -> list[str]:
        """Return the volumes of a server that Nova knows."""
        found = objects.BlockDeviceMappingList.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id']
        )
        return [bdm.volume_id for bdm in found if bdm.volume_id]

    def _wait_for_events(self, server: Any, result: str) -> None:
        def is_so() -> bool:
            found = [event['result'] for event in self.last_events(server)]
            return bool(found) and set(found) == {result}

        self.until(is_so, f'its events are {result}')

    def _attachments(self, server: Any) -> list[str]:
        return list(self.cinder.attachment_ids_for_instance(server['id']))

    def _row_of(self, server: Any) -> Any:
        return objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server['id']
        )


class GlanceRefusesTest(pool.PoolTestCase):
    """Glance fails after nova-api has accepted a rebuild."""

    def _rebuild(self, *failures: Exception) -> Mapping[str, Any]:
        """Rebuild a server with another image; return it afterwards.

        :param failures: what the reads of the worker end with at first
        """
        server = self.boot(self.flavor)
        left = list(failures)
        for host in self.workers:
            client: Any = self.manager(host).image_api
            client.get = functools.partial(_fail_or_answer, left, client.get)
        self.action(server, 'rebuild', {'imageRef': _OTHER_IMAGE})
        self.until(lambda: not left, 'Glance has failed')
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None}
        )
        return dict(self.api.get_server(server['id']))

    def _rebuilds_count(self) -> int:
        return sum(call[0] == 'rebuild' for call in self.ironic.calls)

    def test_rebuild_begins_when_glance_answers(self) -> None:
        """Nova would end it, and show the new image."""
        away = exception.GlanceConnectionFailed(server='g', reason='refused')
        server = self._rebuild(away)
        self.assertEqual('ACTIVE', server['status'])
        self.assertEqual(_OTHER_IMAGE, server['image']['id'])
        self.assertEqual(1, self._rebuilds_count())

    def test_rebuild_with_a_deleted_image_changes_nothing(self) -> None:
        """The disk has the former image, and Nova shows it."""
        server = self._rebuild(exception.ImageNotFound(image_id=_OTHER_IMAGE))
        self.assertEqual('ACTIVE', server['status'])
        self.assertEqual(base.IMAGE_ID, server['image']['id'])
        self.assertEqual(0, self._rebuilds_count())


def _fail_or_answer(
    failures: list[Exception], answer: Any, *args: Any, **kwargs: Any
) -> Any:
    if failures:
        raise failures.pop()
    return answer(*args, **kwargs)


class IronicRefusesTest(pool.PoolTestCase):
    """Ironic is away for longer than a request is repeated."""

    def test_rebuild_begins_when_ironic_answers(self) -> None:
        """Nova would put the server to ERROR, with the new image."""
        server = self.boot(self.flavor)
        self.flags(api_max_retries=1, api_retry_interval=1, group='ironic')
        left: list[Exception] = [errors.IronicUnavailable('no answer')] * 3
        ironic: Any = self.ironic
        ironic.read_node_of_instance = functools.partial(
            _fail_or_answer, left, ironic.read_node_of_instance
        )
        self.action(server, 'rebuild', {'imageRef': _OTHER_IMAGE})
        self.until(lambda: not left, 'Ironic was away', timeout_s=_WAIT_S)
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None}
        )
        shown = self.api.get_server(server['id'])
        self.assertEqual('ACTIVE', shown['status'])
        self.assertIn('rebuild', [call[0] for call in self.ironic.calls])


class NeutronRefusesTest(pool.PoolTestCase):
    """Neutron refuses connections for longer than Nova itself tries."""

    def setUp(self) -> None:
        """Send the requests of both workers as one worker does."""
        super().setUp()
        self.network = neutron.use_http(self)
        clock = pool.TheCloud.clock
        gate = LeaseGate(clock, math.inf)
        traffic = SessionTraffic(NEUTRON, PathHealth(clock), clock)
        repeats = RepeatedRequests(clock, _WAIT_S)
        gated_writes.gate_sessions(gate, traffic, repeats, clock)

    def _boot_on_network(self) -> Any:
        return self.boot(
            self.flavor, networks=[{'uuid': self.neutron.network_1['id']}]
        )

    def _refuse(self, begin: str) -> None:
        self.network.refuse(_REFUSED_S, lambda line: line.startswith(begin))

    def _assert_built_once(self, server: Any) -> None:
        """Assert that no build failed and was rescheduled."""
        self.assertNotEqual([], self.network.refused)
        builds = [
            event['result']
            for event in self.last_events(server)
            if event['event'] == 'compute__do_build_and_run_instance'
        ]
        self.assertEqual(['Success'], builds)
        self.assertEqual(1, len(self._ports(server)))

    def _ports(self, server: Any) -> list[str]:
        return [
            port['id']
            for port in self.neutron._ports.values()
            if port['device_id'] == server['id']
        ]

    def test_boot_waits_for_neutron(self) -> None:
        """The port that Nova was about to create exists once."""
        self._refuse('POST /v2.0/ports')
        server = self._boot_on_network()
        self._assert_built_once(server)
        self.assertEqual(
            self._ports(server), self.ironic.list_vifs(self.node_of(server))
        )

    def test_boot_waits_for_neutron_with_its_port_made(self) -> None:
        """The update of a port may be sent twice."""
        self._refuse('PUT /v2.0/ports')
        self._assert_built_once(self._boot_on_network())

    def test_reboot_and_delete_wait_for_neutron(self) -> None:
        """Nova reads the ports for a reboot, and deletes them at the end."""
        server = self._boot_on_network()
        self._refuse('GET /v2.0/ports')
        self._reboot_server(server, hard=True)
        self.assertNotEqual([], self.network.refused)
        self.assertNotIn('fault', self.api.get_server(server['id']))
        self.assertEqual(
            ['Success'],
            [event['result'] for event in self.last_events(server)],
        )
        self.network.refused.clear()
        self._refuse('DELETE /v2.0/ports')
        self.delete(server)
        self.assertNotEqual([], self.network.refused)
        self.assertEqual([], self._ports(server))
        self.assertEqual({}, self.allocations(server))

    def test_port_of_a_killed_build_is_deleted(self) -> None:
        """Its worker was killed while it waited for Neutron."""
        server = self.boot(self.flavor)
        context = nova_context.get_admin_context()
        row = objects.Instance.get_by_uuid(context, server['id'])
        self.ironic.change(
            row.node, provision_state='available', instance_uuid=None
        )
        row.vm_state = vm_states.BUILDING
        row.task_state = task_states.NETWORKING
        row.save()
        self.neutron.add_port({**self.neutron.port_2, 'device_id': row.uuid})
        self._refuse('GET /v2.0/ports')
        manager = self.manager(row.host)
        self.assertTrue(manager.undo_interrupted_build(context, row, None))
        self.assertNotEqual([], self.network.refused)
        self.assertEqual([], self._ports(server))
        self.assertNotEqual({}, self.allocations(server))
