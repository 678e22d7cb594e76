# SPDX-License-Identifier: Apache-2.0
"""Whatever a worker left half done reaches its end, and only once.

The rows are put into the state in which a killed worker or a lost message
leaves them; the running worker finds them by itself.
"""

import datetime
import json
import time
import types
from collections.abc import Mapping
from typing import Any

import fixtures
from nova import context as nova_context
from nova import exception, objects
from nova.compute import manager as nova_manager
from nova.compute import rpcapi, task_states, vm_states

from ironic_compute.nodes import records
from tests.functional import base, pool


class UnfinishedTestCase(pool.PoolTestCase):
    """Two hosts whose workers look for unfinished work each second."""

    OPTIONS: Mapping[str, Any] = types.MappingProxyType({'unfinished_s': 1.0})

    def setUp(self) -> None:
        """Boot one server."""
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.server = self.boot(self.flavor)
        self.node = self.server['OS-EXT-SRV-ATTR:hypervisor_hostname']

    def _row(self) -> Any:
        return objects.Instance.get_by_uuid(self.context, self.server['id'])

    def _leave(self, **fields: Any) -> Any:
        """Put the server's row into a state that somebody left."""
        row = self._row()
        for name, value in fields.items():
            setattr(row, name, value)
        row.save()
        return row

    def _leave_waiting(self, **fields: Any) -> None:
        """Put the server back to where no host builds it yet."""
        self.ironic.change(
            self.node, provision_state='available', instance_uuid=None
        )
        self._leave(
            vm_state=vm_states.BUILDING,
            task_state=task_states.SCHEDULING,
            host=None,
            node=None,
            compute_id=None,
            **fields,
        )

    def _shown(self) -> dict[str, Any]:
        return self.api.get_server(self.server['id'])  # type: ignore[no-any-return]

    def _has_ended(self) -> bool:
        return self._row().task_state is None

    def _is_gone(self) -> bool:
        # Of one cell: to list servers of all has Nova's fixture point other
        # threads at another one for a moment.
        try:
            self._row()
        except exception.InstanceNotFound:
            return True
        return False

    def _failed_actions(self) -> list[str]:
        actions = self.api.get_instance_actions(self.server['id'])
        return [a['action'] for a in actions if a['message']]


class UnfinishedTest(UnfinishedTestCase):
    """Tasks, servers and nodes that are at no rest and nobody's work."""

    # Tasks

    def test_reboot_whose_message_was_lost_is_done(self) -> None:
        """A reboot that was requested and never begun is done."""
        self._leave(task_state=task_states.REBOOTING_HARD)
        self.until(self._has_ended, 'the reboot done')
        self.assertEqual('ACTIVE', self._shown()['status'])
        self.assertEqual([], self._failed_actions())

    def test_reboot_cut_short_on_a_running_machine_is_over(self) -> None:
        """A reboot that had begun is not repeated if the machine is on."""
        self.ironic.calls.clear()
        self._leave(task_state=task_states.REBOOT_STARTED_HARD)
        self.until(self._has_ended, 'the task over')
        self.assertEqual([], self.ironic.names())

    def test_delete_whose_message_was_lost_is_done(self) -> None:
        """A delete is finished, because nova-api ignores a second one."""
        self._leave(task_state=task_states.DELETING)
        self.until(self._is_gone, 'the server gone')
        self.until(lambda: self.offered() == 8, 'its node offered')

    def _record_action(self, name: str) -> None:
        """Have a request of a user in Nova's records, and nowhere else."""
        context = nova_context.get_admin_context()
        objects.InstanceAction.action_start(
            context, self.server['id'], name, want_result=False
        )

    def _search_neglected(self) -> None:
        self._leave(display_name='changed')
        for host in self.workers:
            self.manager(host)._recovery_loop._neglected._try_check()

    def test_delete_whose_task_was_overwritten_is_done(self) -> None:
        """Only the action of the delete is left, without an end."""
        self._record_action('delete')
        self._search_neglected()
        self.until(self._is_gone, 'the server gone')
        self.until(lambda: self.offered() == 8, 'its node offered')

    def test_server_that_was_used_after_its_delete_is_kept(self) -> None:
        """The newest request counts."""
        self._record_action('delete')
        self._record_action('reboot')
        self._search_neglected()
        self.assertIsNone(self._row().task_state)
        self.assertEqual('ACTIVE', self._shown()['status'])

    def test_stop_cut_short_is_done(self) -> None:
        """A stop that was interrupted ends with the machine off."""
        self._leave(task_state=task_states.POWERING_OFF)
        self.until(self._has_ended, 'the stop done')
        self.assertEqual('SHUTOFF', self._shown()['status'])

    def test_unsupported_task_is_cleared(self) -> None:
        """A task that bare metal does not support is cleared."""
        self._leave(task_state=task_states.IMAGE_SNAPSHOT)
        self.until(self._has_ended, 'the task forgotten')
        self.assertEqual('ACTIVE', self._shown()['status'])

    # Builds and rebuilds

    def test_build_that_ironic_finished_is_active(self) -> None:
        """A deploy that ended after its worker was killed is ACTIVE."""
        self._leave(
            vm_state=vm_states.BUILDING, task_state=task_states.SPAWNING
        )
        self.until(self._has_ended, 'the build ended')
        self.assertEqual('ACTIVE', self._shown()['status'])

    def test_bug_1833581_build_that_never_reached_ironic_gives_all_back(
        self,
    ) -> None:
        """Bug 1833581: such a build frees its node and its allocation."""
        self.ironic.change(
            self.node, provision_state='available', instance_uuid=None
        )
        self._leave(
            vm_state=vm_states.BUILDING, task_state=task_states.SPAWNING
        )
        self.until(self._has_ended, 'the build ended')
        shown = self._shown()
        self.assertEqual('ERROR', shown['status'])
        self.assertIn('interrupted before Ironic', shown['fault']['message'])
        self.assertIsNone(shown['OS-EXT-SRV-ATTR:host'])
        self.assertEqual({}, self.allocations(self.server))
        self.until(lambda: self.offered() == 8, 'its node offered')

    def test_rebuild_that_ironic_never_received_fails(self) -> None:
        """An active node does not prove that it was rebuilt.

        Not even if it was to be asked the next moment.
        """
        objects.InstanceAction.action_start(
            nova_context.get_admin_context(),  # Its time is the action's.
            self.server['id'],
            'rebuild',
            want_result=False,
        )
        self._leave(task_state=task_states.REBUILD_SPAWNING)
        self.until(self._has_ended, 'the rebuild ended')
        shown = self._shown()
        self.assertEqual('ERROR', shown['status'])
        self.assertIn('rebuild it again', shown['fault']['message'])
        self.assertEqual([self.node], list(self.allocations(self.server)))

    def test_rebuild_that_ironic_finished_is_done_by_any_clock(self) -> None:
        """Ironic's clock is years behind that of Nova."""
        stamps = self.ironic.changed_at
        stamps[self.node] = '2020-01-01T00:00:00+00:00'
        seen: list[dict[str, Any]] = []
        request = self.ironic.set_provision_state

        def note_and_send(*args: Any, **kwargs: Any) -> None:
            row = self._row()
            fields = 'task_state', 'system_metadata'
            seen.append({name: getattr(row, name) for name in fields})
            request(*args, **kwargs)

        self.ironic.set_provision_state = note_and_send  # type: ignore[method-assign]
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': base.IMAGE_ID}}
        )
        self.until(lambda: seen and self._has_ended(), 'the rebuild done')
        self.assertIsNone(records.before_rebuild(self._row()))
        stamps[self.node] = '2020-01-01T00:05:00+00:00'
        # As if the worker had been killed just after its request.
        self._leave(**seen[0])
        self.until(self._has_ended, 'the rebuild done again')
        self.assertEqual('ACTIVE', self._shown()['status'])

    # Shelved servers

    def _boot_from_volume(self) -> None:
        request = self._build_server(
            flavor_id=self.flavor['id'], networks='none', image_uuid=''
        )
        self.server = self._wait_for_state_change(
            self.api.post_server(
                {'server': {**request, 'block_device_mapping_v2': [base.ROOT]}}
            ),
            'ACTIVE',
        )
        self.node = self.server['OS-EXT-SRV-ATTR:hypervisor_hostname']

    def _is_shelved(self) -> bool:
        row = self._row()
        is_off = row.vm_state == vm_states.SHELVED_OFFLOADED
        return is_off and row.host is None and row.task_state is None

    def test_shelving_and_unshelving_that_were_cut_short_end(self) -> None:
        """Interrupted shelving and unshelving lose no data and no node."""
        self._boot_from_volume()
        self._leave(task_state=task_states.SHELVING)
        self.until(self._is_shelved, 'it shelved by the handler')
        self.assertEqual({}, self.allocations(self.server))
        self.action(self.server, 'unshelve')
        self._wait_for_state_change(self.server, 'ACTIVE')
        node = self._row().node
        self.ironic.change(
            node, provision_state='available', instance_uuid=None
        )
        self._leave(
            vm_state=vm_states.SHELVED_OFFLOADED,
            task_state=task_states.SPAWNING,
        )
        self.until(self._is_shelved, 'its unshelving undone')
        self.assertEqual({}, self.allocations(self.server))
        self.action(self.server, 'unshelve')
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertEqual([], self._failed_actions())

    def test_unshelve_of_a_server_that_still_has_its_former_host(
        self,
    ) -> None:
        """A worker was killed before it took the host from a shelved server.

        Its successor must not take the unshelve of another host for its own.
        """
        self._boot_from_volume()
        self.action(self.server, 'shelve')
        self.until(self._is_shelved, 'it shelved')
        self._restore_host_before_unshelve()
        self._delay_volumes()
        self.action(self.server, 'unshelve')
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertEqual([self._row().node], [*self.allocations(self.server)])
        self.assertEqual([], self._failed_actions())

    def _restore_host_before_unshelve(self) -> None:
        """Have an unshelve meet another host in the server's record."""
        real = rpcapi.ComputeAPI.unshelve_instance

        def unshelve(
            api: Any,
            context: Any,
            instance: Any,
            host: str,
            *rest: Any,
            **kw: Any,
        ) -> Any:
            row = objects.ComputeNode.get_by_nodename(self.context, self.node)
            instance.host = {'c1': 'c2', 'c2': 'c1'}[host]
            instance.node, instance.compute_id = self.node, row.id
            instance.save()
            return real(api, context, instance, host, *rest, **kw)

        self.useFixture(
            fixtures.MonkeyPatch(
                'nova.compute.rpcapi.ComputeAPI.unshelve_instance', unshelve
            )
        )

    def _delay_volumes(self) -> None:
        """Have Cinder take longer than recovery waits for a message."""
        real = nova_manager.ComputeManager._prep_block_device

        def prepare(*args: Any, **kwargs: Any) -> Any:
            time.sleep(6)
            return real(*args, **kwargs)

        self.useFixture(
            fixtures.MonkeyPatch(
                'nova.compute.manager.ComputeManager._prep_block_device',
                prepare,
            )
        )

    # Servers without a host

    def test_host_that_a_server_has_lost_is_restored(self) -> None:
        """nova-conductor carried out the end of an earlier task late."""
        row = self._row()
        place = row.host, row.node, row.compute_id
        self._leave(host=None, node=None, compute_id=None)
        strays = self.manager(row.host)._recovery_loop._strays

        def is_restored() -> bool:
            # A round may have read the server before it lost its host.
            strays.forget_checked()
            now = self._row()
            return (now.host, now.node, now.compute_id) == place

        self.until(is_restored, 'its host restored')
        self._reboot_server(self.server, hard=True)
        self.assertEqual([], self._failed_actions())

    # Messages that come twice

    def test_reboot_that_was_done_is_dropped(self) -> None:
        """A second message of a finished reboot is dropped."""
        self._reboot_server(self.server, hard=True)
        self.ironic.calls.clear()
        rpcapi.ComputeAPI().reboot_instance(
            self.context, self._row(), None, 'HARD'
        )
        self._settle()
        self.assertEqual([], self._failed_actions())
        self.assertNotIn('fault', self._shown())
        self.assertNotIn('reboot', self.ironic.names())

    def test_build_of_a_server_that_runs_is_dropped(self) -> None:
        """A build message of an active server is dropped."""
        row = self._row()
        self.manager(row.host).build_and_run_instance(
            self.context,
            instance=row,
            image={},
            request_spec=objects.RequestSpec(),
            filter_properties={},
            accel_uuids=[],
            node=self.node,
        )
        self._settle()
        self.assertEqual('ACTIVE', self._shown()['status'])
        self.assertEqual(
            self.server['id'], self.ironic.nodes[self.node].instance_uuid
        )

    def _alternate(self) -> objects.Selection:
        """Return a free node as the scheduler names it."""
        node = next(node for node in self.ironic.nodes if node != self.node)
        (host,) = (host for host in self.workers if node in self.held(host))
        resources = {'resources': {self.RESOURCE_CLASS: 1}}
        return objects.Selection(
            service_host=host,
            nodename=node,
            availability_zone='nova',
            limits=None,
            allocation_request=json.dumps({'allocations': {node: resources}}),
            allocation_request_version='1.36',
        )

    def _reschedule(
        self, host: str, alternates: list[Any], attempts_count: int = 1
    ) -> None:
        self.manager(host).compute_task_api.build_instances(
            self.context,
            [self._row()],
            image={},
            filter_properties={
                'retry': {'num_attempts': attempts_count, 'hosts': []}
            },
            admin_password=None,
            injected_files=[],
            requested_networks=None,
            security_groups=[],
            block_device_mapping=[],
            request_spec=objects.RequestSpec.get_by_instance_uuid(
                self.context, self.server['id']
            ),
            host_lists=[alternates],
        )

    def test_second_reschedule_of_a_server_that_runs_is_dropped(self) -> None:
        """Its build's message came again.

        The conductor would save ERROR after the last attempt or without a free
        node, and otherwise allocate a second node.
        """
        host = self._row().host
        self._reschedule(host, [])
        self._reschedule(host, [self._alternate()])
        self._reschedule(host, [self._alternate()], attempts_count=3)
        self._settle()
        self.assertEqual('ACTIVE', self._shown()['status'])
        self.assertEqual([self.node], [*self.allocations(self.server)])

    def test_build_without_hosts_ends_in_error(self) -> None:
        """It is the last one, so its server gets a fault."""
        host = self._row().host
        self._leave_waiting()
        self.manager(host).reportclient.delete_allocation_for_instance(
            self.context, self.server['id'], force=True
        )
        self._reschedule(host, [])
        shown = self._shown()
        self.assertEqual('ERROR', shown['status'])
        self.assertIn('Exhausted all hosts', shown['fault']['message'])

    def test_delete_of_a_server_that_is_gone_is_dropped(self) -> None:
        """A delete message of a deleted server is dropped."""
        row = self._row()
        self.delete(self.server)
        self.manager(row.host).terminate_instance(self.context, row, [])

    # Nodes

    def test_bug_1679750_node_of_a_server_deleted_in_nova_alone_is_freed(
        self,
    ) -> None:
        """Bug 1679750: nova-api deleted the server; its node is freed."""
        row = self._row()
        manager = self.manager(row.host)
        strays, rows = (
            manager._recovery_loop._strays,
            manager._components.compute_nodes,
        )
        self.assertEqual({row.uuid}, rows.list_servers_of_host(row.host))
        row.destroy()
        self.assertEqual(frozenset(), rows.list_servers_of_host(row.host))

        def is_freed() -> bool:
            # What was seen at home, just before, is asked again at each
            # audit only.
            strays.forget_checked()
            return self.ironic.nodes[self.node].instance_uuid is None

        self.until(is_freed, 'the node freed')

    def test_node_with_a_server_nova_never_had_is_left_alone(self) -> None:
        """A node with a server unknown to Nova is never torn down."""
        free = next(
            n for n, f in self.ironic.nodes.items() if f.instance_uuid is None
        )
        other = base.IMAGE_ID
        self.ironic.change(free, provision_state='active', instance_uuid=other)
        self.until(lambda: self.offered() == 6, 'the node not offered')
        self._settle()
        self.assertEqual(other, self.ironic.nodes[free].instance_uuid)

    def test_record_of_a_node_follows_its_server(self) -> None:
        """A node with a server moves to the server's ``Instance.host``."""
        here = self._row().host
        other = {'c1': 'c2', 'c2': 'c1'}[here]
        self._leave(host=other)

        def has_followed() -> bool:
            # What was seen at home, just before, is asked again at each
            # audit only.
            self.manager(here)._recovery_loop._strays.forget_checked()
            return self.node in self.held(other)

        self.until(has_followed, 'the row followed')
        self.until(lambda: self.node not in self.held(here), 'it let go')

    def _settle(self) -> None:
        """Let the workers look a few times: nothing is to happen."""
        time.sleep(3)


class LostBuildTest(UnfinishedTestCase):
    """Builds whose message was lost are looked for each half minute."""

    # A build that waits for its turn on a busy machine is not lost yet.
    OPTIONS = types.MappingProxyType(
        {**UnfinishedTestCase.OPTIONS, 'lost_build_s': 30.0}
    )

    def test_lost_build_ends_in_error(self) -> None:
        """A build whose worker was killed before the claim ends."""
        self._leave_waiting(
            updated_at=self._row().updated_at - datetime.timedelta(minutes=1)
        )
        self.until(
            lambda: self._row().vm_state == vm_states.ERROR, 'the build ended'
        )
        self.assertIn('was lost', self._shown()['fault']['message'])
        # Its end begins with the row, so that somebody finds it if cut short.
        self.until(
            lambda: not self.allocations(self.server), 'the allocation gone'
        )


class DeletedWhileBuiltTest(pool.PoolTestCase):
    """Deletes that nova-api accepts during a build; their message is lost."""

    OPTIONS: Mapping[str, Any] = types.MappingProxyType({'unfinished_s': 1.0})

    def _build_and_delete(self, step: str) -> None:
        """Build a server whose delete is accepted at a step of Nova's build.

        :param step: the method of Nova's ComputeManager before the save that
            finds the delete
        """
        at_work = self._delete_at(step)
        server = self.api.post_server(
            {
                'server': self._build_server(
                    image_uuid=base.IMAGE_ID,
                    flavor_id=self.flavor['id'],
                    networks='none',
                )
            }
        )
        self._wait_until_deleted(server)
        self.assertEqual([server['id']], at_work)
        self.until(lambda: self.offered() == 8, 'its node offered')

    def _delete_at(self, step: str) -> list[str]:
        """Save the task of a delete, as nova-api does, at a step of a build.

        :returns: grows by each server that was deleted so
        """
        deleted: list[str] = []
        name = f'nova.compute.manager.ComputeManager.{step}'
        real = getattr(nova_manager.ComputeManager, step)

        def delete(*args: Any, **kwargs: Any) -> Any:
            instance = next(
                arg for arg in args if isinstance(arg, objects.Instance)
            )
            context = nova_context.get_admin_context()
            row = objects.Instance.get_by_uuid(context, instance.uuid)
            row.task_state = task_states.DELETING
            row.save()
            deleted.append(row.uuid)
            return real(*args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(name, delete))
        return deleted

    def test_delete_during_the_end_of_a_build_is_done(self) -> None:
        """Nova's cleanup would save the refused end: ACTIVE, without a task.

        Recovery would take the server for one that nobody deleted.
        """
        self._build_and_delete('_update_instance_after_spawn')

    def test_delete_before_a_node_is_deployed_is_done(self) -> None:
        """The end of the claim would save the refused task, and no host."""
        self._build_and_delete('_prep_block_device')
