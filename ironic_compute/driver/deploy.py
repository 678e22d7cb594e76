# SPDX-License-Identifier: Apache-2.0
"""Build (spawn) of a server: its steps, and how long it waits for the deploy.

The steps are: reserve the node, attach VIFs, write ``instance_info``, attach
volumes, let Ironic validate the node, send the config drive with the request
for ``active``, and wait until the node is active. If a step fails, all steps
so far are undone and the node is free again.

Runs in Nova's thread of the build. A rebuild and the recovery of interrupted
builds use parts of it.
"""

import itertools
import re
from collections.abc import Callable
from typing import Any

import attrs
import nova.conf
from nova import exception as nova_exception
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from ironic_compute import delivery, errors
from ironic_compute.driver import configdrive, instance_info, nova_errors
from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.driver.build_slots import BuildSlot, BuildSlots
from ironic_compute.driver.cancellations import Cancellations
from ironic_compute.driver.config_drive_hooks import ConfigDriveHooks
from ironic_compute.driver.deploy_request import BUILD, DeployRequest
from ironic_compute.driver.network import Network, read_networks
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.driver.teardown import Teardown
from ironic_compute.driver.undo import UndoableStep, run_or_undo
from ironic_compute.driver.volumes import Volumes
from ironic_compute.ironic_api import states
from resource_tracker.node import NodeFacts, NodeId

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# How often a waiting build checks whether the user has deleted its server,
# and after how many such checks it reads the node once more.
_CHECK_S = 30.0
_CHECKS_PER_READ_COUNT = 10
# The interfaces of an Ironic node that must be valid for a deploy.
_REQUIRED_INTERFACES = ('deploy', 'storage', 'power')
# The texts of Ironic's exceptions for a bad image (ironic.common.exception and
# validate_image_properties). Other texts that name an image, for example
# image_download_source, are about the node or its conductor.
_IMAGE_ERROR = re.compile(
    'InvalidImage|Not authorized for image|image href'
    '|Image .* (could not be found|is unacceptable|is missing)'
    '|The (requested|supplied) image '
)


def _do_nothing() -> None:
    """Do nothing before the request for a deploy."""


@attrs.define(eq=False, repr=False, slots=False)
class Deploy:
    """Deploys nodes for servers; any thread may call."""

    _waiter: NodeWaiter
    _network: Network
    _volumes: Volumes
    _teardown: Teardown
    _cancellations: Cancellations
    _hooks: ConfigDriveHooks

    def __attrs_post_init__(self) -> None:
        self._client = self._waiter.client
        self._build_slots = BuildSlots(
            cancellations=self._cancellations,
            waiting_threads=self._waiter.waiting_threads,
        )

    def repeat_read(
        self, instance: Any, read: Callable[[], NodeFacts]
    ) -> NodeFacts:
        """Read a build's node, again while Ironic is unavailable; return it.

        :param read: reads the node from Ironic
        :raises errors.IronicComputeError: see ``NodeWaiter.retry``
        :raises UnexpectedDeletingTaskStateError: the user deleted the server
        """

        def read_unless_cancelled() -> NodeFacts:
            with nova_errors.as_nova_build_errors(instance):
                self._cancellations.raise_if_cancelled(instance.uuid)
            return read()

        return self._waiter.retry(read_unless_cancelled)

    def reserve_node(self, node: NodeId, instance: Any) -> None:
        """Write the server's uuid to a node that can take a build.

        May be called again for the same server. Blocks.

        :raises errors.NodeAssociated: another server got the node first, or
            another node is deployed for the server
        :raises errors.DeployFailed: the node cannot take a build now
        """
        facts = self._waiter.read_node(node)
        reason = _unfit_reason(facts, instance.uuid)
        if reason is not None:
            raise errors.DeployFailed(f'Node {node} takes no build: {reason}')
        if facts.instance_uuid is None:
            reserved = self._reserve(node, instance.uuid)
            self._waiter.pass_to_feed(reserved)
            self._give_back_if_unfit(reserved, instance.uuid)

    def _give_back_if_unfit(self, reserved: NodeFacts, server: str) -> None:
        """Remove the server's uuid from a node that takes no build any more.

        The request may have waited for the lease or for a lock, and somebody
        else may have deployed the node meanwhile, without an instance. If the
        uuid stayed, the end of the build would remove what runs there.
        """
        reason = _unfit_reason(reserved, server)
        if reason is not None:
            node = reserved.uuid
            self._waiter.retry(lambda: self._client.release_node(node, server))
            self._waiter.try_read_node(node)
            raise errors.DeployFailed(f'Node {node} takes no build: {reason}')

    def _reserve(self, node: NodeId, server: str) -> NodeFacts:
        try:
            return self._send_reservation(node, server)
        except errors.NodeAssociated:
            other = self._waiter.retry(
                lambda: self._client.read_node_of_instance(server)
            )
            if other is None or other.uuid == node:
                raise
        # Only one build of a server has its Instance and gets here, so this
        # is left of an earlier one: Ironic may have carried out its request
        # late, after it was undone, or was away when its deploy had failed.
        LOG.info(
            'Freeing node %(node)s of server %(server)s: it is built on node '
            '%(other)s',
            {'node': other.uuid, 'server': server, 'other': node},
        )
        self._teardown.undo_build(other.uuid, server)
        return self._send_reservation(node, server)

    def _send_reservation(self, node: NodeId, server: str) -> NodeFacts:
        return self._waiter.retry(
            lambda: self._client.reserve_node(node, server)
        )

    def prepare_for_volumes(self, instance: Any, network_info: Any) -> None:
        """Attach the VIFs of a build that has volumes, before Cinder is asked.

        The volume connector of such a build has an address of the server,
        which may depend on the port to which Ironic attaches a VIF. Builds
        without volumes attach their VIFs later and do not wait for Neutron
        here.

        :param network_info: Nova's lazy list, which waits for Neutron when it
            is read
        :raises errors.DeployFailed: the node cannot have volumes
        :raises InvalidBDM: Nova ends the build, because Neutron has refused
            the networks
        """
        if any(device.is_volume for device in instance.get_bdms()):
            node = NodeId(instance.node)
            self._volumes.check_storage(node)
            self._network.attach_missing_vifs(
                node, read_networks(network_info)
            )

    def spawn(self, request: BuildRequest) -> None:
        """Build a server; block until its node is active.

        :raises errors.DeployInvalid: the build would fail on any node
        :raises errors.DeployFailed: the build may succeed on another node
        :raises nova_errors.Cancelled: the user deleted the server
        """
        slot = self._build_slots.new_slot(request.instance.uuid)
        try:
            run_or_undo(self._steps(request, slot))
        finally:
            slot.release()
        LOG.info(
            'Built server %(server)s on node %(node)s',
            {'server': request.instance.uuid, 'node': request.node},
        )

    def wait_until_active(
        self, instance: Any, node: NodeId, fresh: NodeFacts | None = None
    ) -> None:
        """Block until the deploy of a node has ended, however long it takes.

        :param fresh: the node as Ironic has just returned it, which saves a
            read
        :raises errors.DeployFailed: the deploy failed, or the node has another
            server
        :raises errors.DeployInvalid: the server was put to ERROR, for example
            because of Nova's ``instance_build_timeout``
        :raises nova_errors.Cancelled: the user deleted the server
        """

        def evaluate(facts: NodeFacts) -> NodeFacts | None:
            self._cancellations.raise_if_cancelled(instance.uuid)
            return _facts_when_ended(facts, instance.uuid)

        for checks_count in itertools.count(1):
            try:
                facts = self._waiter.wait_until(
                    node, evaluate, _CHECK_S, fresh=fresh
                )
                break
            except errors.WaitTimeout:
                _raise_if_ended(instance)
            fresh = None
            if checks_count % _CHECKS_PER_READ_COUNT == 0:
                # A failed read does not end the wait: an outage of Ironic's
                # API does not mean that the deploy failed.
                self._waiter.try_read_node(node)
        reason = _failure(facts, instance.uuid)
        if reason is not None:
            raise errors.DeployFailed(nova_errors.without_urls(reason))
        if CONF.instance_build_timeout:
            # Nova may have put the server to ERROR since the last check.
            _raise_if_ended(instance)

    def write_instance_info(
        self, request: BuildRequest, preserve_ephemeral: bool | None = None
    ) -> None:
        """Write the description of the server to the node in Ironic.

        :param preserve_ephemeral: for a rebuild, whether to keep the
            ephemeral partition; None for a build
        """
        facts = self._waiter.read_node(request.node)
        patches = instance_info.build_patches(
            facts, request, preserve_ephemeral
        )
        described = self._waiter.retry(
            lambda: self._client.patch_node(request.node, patches)
        )
        self._waiter.pass_to_feed(described)

    def validate_node(self, node: NodeId) -> None:
        """Have Ironic check whether it could deploy a node.

        :raises errors.DeployInvalid: the image cannot be deployed
        :raises errors.DeployFailed: another reason forbids a deploy
        """
        result = self._waiter.retry(lambda: self._client.validate_node(node))
        reason = _validation_error(result)
        if reason:
            is_image = _is_image_error(reason)
            kind = errors.DeployInvalid if is_image else errors.DeployFailed
            raise kind(f'Ironic cannot deploy node {node}: {reason}')

    def request_deploy(
        self,
        request: BuildRequest,
        target: str,
        before_request: Callable[[], None] = _do_nothing,
        changed_at: str | None = None,
    ) -> NodeFacts | None:
        """Build the config drive and request a deploy of the node.

        :param target: see ``DeployRequest``
        :param before_request: called once, when the config drive is built and
            only the request is left to send
        :param changed_at: see ``DeployRequest``
        :returns: the node after the request; None if it could not be read
        :raises errors.DeployInvalid: Ironic refuses because of the image, or
            the server was put to ERROR
        :raises nova_errors.Cancelled: the user deleted the server
        """
        drive = self._waiter.retry(
            lambda: configdrive.build(self._client, request, self._hooks)
        )
        before_request()
        instance = request.instance
        try:
            DeployRequest(
                self._waiter,
                request.node,
                instance.uuid,
                target,
                drive,
                changed_at,
                lambda: self._cancellations.raise_if_cancelled(instance.uuid),
                lambda: _raise_if_ended(instance),
            ).send()
        except errors.IronicRefused as exc:
            if _is_image_error(str(exc)):
                raise errors.DeployInvalid(str(exc)) from exc
            raise
        # Recovery finds a deploy that Ironic has taken over by its row.
        delivery.acknowledge_current()
        return self._waiter.try_read_node(request.node)

    def _steps(
        self, request: BuildRequest, slot: BuildSlot
    ) -> list[UndoableStep]:
        node, uuid = request.node, request.instance.uuid
        # A build with volumes has attached its VIFs before.
        attach_vifs = (
            self._network.attach_missing_vifs
            if request.volumes
            else self._network.attach_vifs
        )
        return [
            UndoableStep(
                f'reservation of node {node}',
                lambda: self.reserve_node(node, request.instance),
                lambda: self._teardown.undo_build(node, uuid),
            ),
            # This step precedes the build slot, because Neutron may be slow
            # and would keep a slot busy.
            UndoableStep(
                f'networks of server {uuid}',
                lambda: _wait_for_networks(request),
            ),
            # A machine may take long to switch off, so this step precedes the
            # build slot, too.
            UndoableStep(
                f'old volumes of node {node}',
                lambda: self._volumes.detach_all_volumes(node),
            ),
            UndoableStep(f'build slot of server {uuid}', slot.acquire),
            UndoableStep(
                f'VIFs of node {node}',
                lambda: attach_vifs(node, request.network_info or ()),
            ),
            UndoableStep(
                f'instance_info of node {node}',
                lambda: self.write_instance_info(request),
            ),
            UndoableStep(
                f'volumes of node {node}',
                lambda: self._volumes.attach_volumes(node, request.volumes),
            ),
            UndoableStep(
                f'validation of node {node}', lambda: self.validate_node(node)
            ),
            UndoableStep(
                f'deploy of node {node}',
                lambda: self._deploy(request, slot),
                lambda: self._teardown.free_node(node, uuid),
            ),
        ]

    def _deploy(self, request: BuildRequest, slot: BuildSlot) -> None:
        _set_ephemeral_device(request.instance)
        fresh = self.request_deploy(request, BUILD)
        slot.release()
        self.wait_until_active(request.instance, request.node, fresh)


def _unfit_reason(facts: NodeFacts, instance_uuid: str) -> str | None:
    """Return why a node cannot take this server; None if it can."""
    meaning = states.meaning(facts.provision_state)
    power = states.PowerState.parse(facts.power_state)
    reasons = {
        f'it has server {facts.instance_uuid}': (
            facts.instance_uuid not in (None, instance_uuid)
        ),
        'it is in maintenance': facts.maintenance,
        'it is retired': facts.retired,
        f'its provision state is {facts.provision_state}': (
            meaning is not states.Meaning.CAN_TAKE_A_BUILD
        ),
        f'its power state is {facts.power_state or "unknown"}': (
            power in (states.PowerState.ERROR, states.PowerState.UNKNOWN)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _facts_when_ended(
    facts: NodeFacts, instance_uuid: str
) -> NodeFacts | None:
    """Return the facts if the deploy has succeeded or failed, else None."""
    state = states.ProvisionState.parse(facts.provision_state)
    is_deploying = (
        state.meaning is states.Meaning.ON_ITS_WAY
        or state is states.ProvisionState.UNKNOWN
    )
    has_ended = facts.instance_uuid != instance_uuid or not is_deploying
    return facts if has_ended else None


def _failure(facts: NodeFacts, instance_uuid: str) -> str | None:
    """Return why a deploy has failed; None if it has succeeded.

    An operator may have the node serviced or rescued as soon as it is active.
    """
    if facts.instance_uuid == instance_uuid:
        meaning = states.meaning(facts.provision_state)
        if meaning is states.Meaning.IN_USE:
            return None
        if meaning is states.Meaning.FAILED:
            return (
                f'Ironic could not deploy server {instance_uuid} on node '
                f'{facts.uuid}: {facts.last_error}'
            )
    return (
        f'Node {facts.uuid} was taken away from server {instance_uuid} while '
        f'it was deployed; it is {facts.provision_state} and has server '
        f'{facts.instance_uuid} now'
    )


def _is_image_error(reason: str) -> bool:
    """Return whether Ironic refuses a deploy because of the image.

    A bad image fails on every node, and each node would have to be cleaned
    after it (bug 2127087). Any other reason may concern this node alone: the
    deploy interface is also invalid if a port or the deploy kernel is missing.
    """
    return _IMAGE_ERROR.search(reason) is not None


def _validation_error(result: Any) -> str | None:
    """Return the errors of the required interfaces; None if all are valid."""
    reasons = (
        f'{name}: {result[name].get("reason")}'
        for name in _REQUIRED_INTERFACES
        if name in result and result[name].get('result') is False
    )
    return '; '.join(reasons) or None


def _raise_if_ended(instance: Any) -> None:
    """Read the Instance again; end its build if others have ended it.

    :raises errors.DeployInvalid: the server was put to ERROR
    :raises nova_errors.Cancelled: the user has deleted the server
    :raises InstanceNotFound: Nova has no record of the server any more
    """
    try:
        instance.refresh()
    except nova_exception.InstanceNotFound:
        raise
    except Exception as exc:
        # An outage of nova-conductor must not end the deploy.
        LOG.debug(
            'Could not read server %(server)s and will try again: %(error)s',
            {'server': instance.uuid, 'error': exc},
        )
        return
    if instance.task_state == task_states.REBUILD_SPAWNING:
        return
    is_deleting = instance.task_state == task_states.DELETING
    if is_deleting or instance.vm_state == vm_states.DELETED:
        raise nova_errors.Cancelled(
            f'Server {instance.uuid} was deleted while it was built'
        )
    if instance.vm_state == vm_states.ERROR:
        raise errors.DeployInvalid(
            f'Server {instance.uuid} was put to ERROR while it was built, by '
            f'an operator or by [DEFAULT] instance_build_timeout'
        )


def _wait_for_networks(request: BuildRequest) -> None:
    """Block until Neutron has allocated the networks of a build.

    Nova's ``network_info`` is a lazy list, which waits when it is read.
    """
    list(request.network_info or ())


def _set_ephemeral_device(instance: Any) -> None:
    """Save the device of the ephemeral disk in the server's record.

    cloud-init reads it from the metadata (bug 1324286).
    """
    if instance.flavor.ephemeral_gb:
        instance.default_ephemeral_device = '/dev/sda1'
        instance.save()
