# SPDX-License-Identifier: Apache-2.0
"""Continues interrupted deploys: builds, rebuilds and unshelves.

Nova's own start would put every server in BUILD or REBUILD to ERROR although
Ironic continues the deploy without a worker. ``interrupted_tasks`` calls this
module in a thread for each server, and no other thread works on the server
meanwhile.
"""

import datetime
from collections.abc import Callable
from typing import Any, Protocol

import attrs
import nova.conf
from nova import context as nova_context
from nova.compute import power_state, task_states, vm_states
from nova.virt import configdrive
from oslo_log import log as logging
from oslo_utils import timeutils

from ironic_compute import errors
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.ironic_api.descriptions import is_described
from ironic_compute.nodes import records
from ironic_compute.recovery import decisions, deploy_ends
from ironic_compute.recovery.failures import TaskFailures, clear_task
from resource_tracker.node import NodeFacts

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_CHANGED_AT = 'provision_updated_at'
_WITHOUT_PORTS = (
    'The build had been given up, and its ports deleted, when its daemon '
    'ended; delete the server and create it again'
)
# The errors that show that a deploy can no longer succeed.
_FINAL_ERRORS = (
    errors.DeployFailed,
    errors.DeployInvalid,
    errors.NodeNotFound,
    errors.NodeGone,
)


class Driver(Protocol):
    """The driver's method that this module calls."""

    def wait_for_deploy(self, instance: Any, node: str) -> None:
        """Block until the node is active; raise if the deploy failed."""


@attrs.define(eq=False, repr=False, slots=False)
class InterruptedDeploys:
    """Waits for deploys that Ironic has started, and ends all others.

    Each method saves the Instance, may block as long as a deploy takes, and
    raises ``nova.exception.UnexpectedTaskStateError`` if the server has got
    another task meanwhile.

    :param network_api: Nova's client of Neutron
    :param report_end: see ``deploy_ends``
    """

    _client: IronicClient
    _driver: Driver
    _failures: TaskFailures
    _network_api: Any
    _report_end: Callable[[Any, Any, str], None] = deploy_ends.report_end

    def is_started(self, instance: Any) -> bool:
        """Return whether Ironic has taken a server's deploy over; a read."""
        return find_started_deploy(self._client, instance) is not None

    def continue_build(self, context: Any, instance: Any) -> None:
        """Wait for a build that Ironic has started, or end the build."""
        facts = find_started_deploy(self._client, instance)
        if facts is not None:
            self._wait_for_deploy(context, instance, facts.uuid)
        else:
            self._failures.fail_build(
                context,
                instance,
                f'The build of server {instance.uuid} was interrupted before '
                f'Ironic had taken it over; delete the server and create it '
                f'again',
            )

    def continue_rebuild(
        self,
        context: Any,
        instance: Any,
        requested_at: datetime.datetime | None,
        *,
        is_evacuation: bool = False,
    ) -> None:
        """Wait for a rebuild that Ironic has started, or end the rebuild.

        :param requested_at: time of the user's request, by Nova's clock
        :param is_evacuation: an operator has requested an evacuation since,
            which has the same task, and is refused: the server stays as it is
        """
        facts = self._client.read_node_of_instance(instance.uuid)
        has_changed = has_node_changed(
            self._client, facts, instance, requested_at
        )
        records.clear_before_rebuild(instance)
        if decisions.is_rebuild_started(
            facts, instance.task_state, has_changed=has_changed
        ):
            self._wait_for_deploy(context, instance, facts.uuid)
        elif is_evacuation:
            clear_task(instance)
        else:
            self._failures.fail_task(
                context,
                instance,
                f'The rebuild of server {instance.uuid} was interrupted '
                f'before Ironic had taken it over; its disk is as it was; '
                f'rebuild it again',
            )

    def continue_unshelve(self, context: Any, instance: Any) -> None:
        """Wait for an unshelve that Ironic has started, or undo it.

        After an undone unshelve the server is shelved as before, unless Ironic
        cannot free its node.
        """
        restore_key(instance)
        facts = find_started_deploy(self._client, instance)
        if facts is not None:
            self._wait_for_deploy(context, instance, facts.uuid)
            return
        self._failures.shelve_again(
            context,
            instance,
            'its unshelving was interrupted before Ironic had taken it over',
        )

    def _wait_for_deploy(self, context: Any, instance: Any, node: str) -> None:
        ends = {
            vm_states.BUILDING: self._failures.fail_build,
            vm_states.SHELVED_OFFLOADED: self._failures.shelve_again,
        }
        end = ends.get(instance.vm_state, self._failures.fail_task)
        task_state = instance.task_state
        try:
            self._driver.wait_for_deploy(instance, node)
        except errors.IronicComputeError as exc:
            if instance.task_state != task_state:
                self._failures.log_new_task(instance)
                return
            if not isinstance(exc, _FINAL_ERRORS):
                # The next round of recovery waits again: the deploy may still
                # succeed.
                raise
            end(context, instance, str(exc))
            return
        former = instance.vm_state
        is_new = former == vm_states.BUILDING
        if is_new and are_ports_gone(self._network_api, instance):
            end(context, instance, _WITHOUT_PORTS)
            return
        if is_new:
            _note_access_addresses(instance)
        # A later rebuild or unshelve makes a config drive only if the record
        # has one. It must be noted before the time of the launch is set, after
        # which ``force_config_drive`` does not count any more.
        configdrive.update_instance(instance)
        # Nova stops a server that was stopped before its rebuild; a later
        # round of recovery does this.
        was_stopped = former == vm_states.STOPPED
        next_task = task_states.POWERING_OFF if was_stopped else None
        instance.vm_state = vm_states.ACTIVE
        instance.power_state = power_state.RUNNING
        instance.launched_at = instance.launched_at or timeutils.utcnow()
        instance.task_state = next_task
        # The record has been read again during the wait.
        records.clear_before_rebuild(instance)
        instance.save(expected_task_state=[task_state])
        LOG.info(
            'Finished the interrupted deploy of server %(server)s on node '
            '%(node)s',
            {'server': instance.uuid, 'node': node},
        )
        self._report_end(context, instance, former)


def find_started_deploy(
    client: IronicClient, instance: Any
) -> NodeFacts | None:
    """Return the node whose deploy for a server has started; else None.

    A worker may have reserved a node just after another user of Ironic had
    deployed it, and have ended before it gave the node back. Such a deploy is
    not the server's, and does not count.
    """
    facts = client.read_node_of_instance(instance.uuid)
    is_started = decisions.is_deploy_started(
        facts, instance.node
    ) and is_described(client, facts.uuid)
    return facts if is_started else None


def has_node_changed(
    client: IronicClient,
    facts: NodeFacts | None,
    instance: Any,
    since: datetime.datetime | None = None,
) -> bool:
    """Return whether a node's provision state changed for a rebuild.

    The clocks of Nova and Ironic may differ. ``since`` is only used for a
    rebuild that stock nova-compute, or an older worker, has begun.
    """
    if facts is None:
        return False
    fields = client.read_fields(facts.uuid, [_CHANGED_AT])
    before, now = records.before_rebuild(instance), fields[_CHANGED_AT]
    if before is None:
        return _is_later(now, since)
    return bool(now) and not _is_same_time(now, before)


def _is_later(stamp: str | None, than: datetime.datetime | None) -> bool:
    """Return whether an Ironic time is later than a Nova time.

    An unknown time is never later.
    """
    if stamp is None or than is None:
        return False
    naive = timeutils.normalize_time
    return bool(naive(timeutils.parse_isotime(stamp)) > naive(than))


def _is_same_time(stamp: str, other: str) -> bool:
    """Return whether two texts of Ironic, maybe empty, mean the same time."""
    if not (stamp and other):
        return stamp == other
    parse = timeutils.parse_isotime
    return bool(parse(stamp) == parse(other))


def are_ports_gone(network_api: Any, instance: Any) -> bool:
    """Return whether Neutron has none of the ports in an Instance record.

    Nova deletes or unbinds all ports of a failed build before it saves the
    Instance (``ComputeManager._cleanup_allocated_networks``), and the worker
    may end between the two steps. Some missing ports are no sign of a failed
    build, because a user may delete them.
    """
    ports = {vif['id'] for vif in instance.get_network_info()}
    if not ports:
        return False
    found = network_api.list_ports(
        nova_context.get_admin_context(), device_id=instance.uuid
    )
    return ports.isdisjoint(port['id'] for port in found['ports'])


def _note_access_addresses(instance: Any) -> None:
    """Set the access addresses of a new server, as Nova's build does.

    They are those in the network of ``default_access_ip_network_name``.
    """
    name = CONF.default_access_ip_network_name
    if not name or instance.access_ip_v4 or instance.access_ip_v6:
        return
    vifs = instance.get_network_info()
    labels = [(vif['network'] or {}).get('label') for vif in vifs]
    if name not in labels:
        return
    vif = vifs[labels.index(name)]
    # If the network has several addresses, the first of each version counts.
    for address in reversed(vif.fixed_ips()):
        if address['version'] == 4:
            instance.access_ip_v4 = address['address']
        else:
            instance.access_ip_v6 = address['address']


def restore_key(instance: Any) -> None:
    """Put a server's public key back into its Instance record.

    Nova removes the key from the record while it unshelves a server.
    """
    if instance.key_name and not instance.key_data:
        for pair in instance.keypairs:
            if pair.name == instance.key_name:
                instance.key_data = pair.public_key
