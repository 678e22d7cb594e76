# SPDX-License-Identifier: Apache-2.0
"""Building a server on a node.

Reserve the node, describe the server, let Ironic validate, attach the VIFs,
hand over the config drive, ask for ``active``, wait. Any failure undoes what
was done and frees the node.
"""

import dataclasses
import enum
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from nova import exception as nova_exception
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver import configdrive, instance_info, nova_errors
from ironic_compute.driver.build_slots import BuildSlot, BuildSlots
from ironic_compute.driver.network import Network
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.driver.teardown import Teardown
from ironic_compute.driver.undo import Step, run
from ironic_compute.driver.volumes import Volumes, is_root
from ironic_compute.ironic_api.states import (
    MEANING,
    Meaning,
    PowerState,
    ProvisionState,
)
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# How often a build looks whether its server was deleted meanwhile, and after
# how many looks without news it reads the node itself.
_LOOK_S = 30.0
_LOOKS_COUNT = 10
# Interfaces that must be valid for a deploy.
_REQUIRED = ('deploy', 'storage', 'power')


def _idle() -> None:
    """Do nothing."""


class Outcome(enum.Enum):
    """How a deploy ended."""

    DONE = enum.auto()
    FAILED = enum.auto()
    LOST = enum.auto()
    """The node is not this server's any more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What Nova asks for in one build.

    :param metadata: Nova's ``InstanceDriverMetadata``
    :param volumes: Nova's driver block devices
    """

    context: Any
    instance: Any
    image_meta: Any
    files: Any
    password: str | None
    network_info: Any
    metadata: Any
    volumes: Sequence[Any] = ()

    @property
    def node(self) -> NodeId:
        """The node to build on."""
        if not self.instance.node:
            raise errors.DeployInvalid(
                f'Nova named no node for server {self.instance.uuid}'
            )
        return NodeId(self.instance.node)


class Deploy:
    """Build servers."""

    def __init__(
        self,
        waiter: NodeWaiter,
        network: Network,
        volumes: Volumes,
        teardown: Teardown,
    ) -> None:
        self._waiter = waiter
        self._client = waiter.client
        self._network = network
        self._volumes = volumes
        self._teardown = teardown
        self._turns = BuildSlots()

    def reserve(self, node: NodeId, instance: Any) -> None:
        """Take a node for a server, if it can take a build; repeatable.

        :raises errors.NodeAssociated: another server was faster
        :raises errors.DeployFailed: it can take no build, and why
        """
        facts = self._waiter.look(node)
        reason = why_unfit(facts, instance.uuid)
        if reason is not None:
            raise errors.DeployFailed(f'Node {node} takes no build: {reason}')
        if facts.instance_uuid is None:
            reserved = self._waiter.patiently(
                lambda: self._client.reserve(node, instance.uuid),
                errors.Retriable,
            )
            self._waiter.take(reserved)

    def spawn(self, order: Order) -> None:
        """Build a server; returns when its node is active.

        :raises errors.DeployInvalid: no other node would do better
        :raises errors.DeployFailed: another node may do
        :raises faults.Cancelled: the user deleted the server
        """
        turn = self._turns.turn()
        try:
            run(self._steps(order, turn))
        finally:
            turn.end()
        LOG.info(
            'Built server %(server)s on node %(node)s',
            {'server': order.instance.uuid, 'node': order.node},
        )

    def wait(
        self, instance: Any, node: NodeId, seen: NodeFacts | None = None
    ) -> None:
        """Block until Ironic has deployed a node.

        :param seen: the node as it was read just now
        :raises errors.DeployFailed: it could not
        :raises faults.Cancelled: the user deleted the server
        """
        for look in itertools.count(1):
            try:
                outcome, facts = self._waiter.until(
                    node,
                    lambda facts: verdict(facts, instance.uuid),
                    _LOOK_S,
                    seen=seen,
                )
                break
            except errors.WaitTimeout:
                _look(instance)
            seen = None
            if look % _LOOKS_COUNT == 0:
                # An Ironic that is away says nothing of the deploy.
                self._waiter.glance(node)
        if outcome is Outcome.DONE:
            return
        raise errors.DeployFailed(_sentence(outcome, facts, instance.uuid))

    def describe(
        self, order: Order, preserve_ephemeral: bool | None = None
    ) -> None:
        """Tell Ironic of the server."""
        patches = instance_info.patches(
            self._waiter.look(order.node),
            order.instance,
            None if is_root(order.volumes) else order.image_meta.id,
            order.metadata,
            list(order.image_meta.properties.get('traits_required', [])),
            preserve_ephemeral,
        )
        described = self._waiter.patiently(
            lambda: self._client.patch(order.node, patches), errors.Retriable
        )
        self._waiter.take(described)

    def ask(
        self, order: Order, target: str, on_asking: Callable[[], None] = _idle
    ) -> NodeFacts | None:
        """Ask for ``active`` or ``rebuild`` with a config drive.

        :param on_asking: called when nothing is left to do but to ask
        :returns: the node as it was afterwards, if Ironic said so
        :raises errors.DeployInvalid: Ironic refuses because of the image
        """
        drive = self._waiter.asked(
            lambda: configdrive.build(
                self._client,
                order.node,
                order.instance,
                order.network_info,
                order.files,
                order.password,
            )
        )
        on_asking()
        try:
            self._waiter.patiently(
                lambda: self._send(order, target, drive), errors.Retriable
            )
        except errors.IronicRefused as exc:
            if _is_of_image(str(exc)):
                raise errors.DeployInvalid(str(exc)) from exc
            raise
        return self._waiter.glance(order.node)

    def _send(self, order: Order, target: str, drive: Any) -> None:
        """Ask for a deploy; if only the answer was lost, it is under way."""
        try:
            self._client.set_provision_state(
                order.node, target, configdrive=drive
            )
        except errors.IronicComputeError:
            facts = self._waiter.read(order.node)
            is_ours = facts.instance_uuid == order.instance.uuid
            state = ProvisionState.parse(facts.provision_state)
            if not is_ours or MEANING[state] is not Meaning.ON_ITS_WAY:
                raise

    def _steps(self, order: Order, turn: BuildSlot) -> list[Step]:
        node, uuid = order.node, order.instance.uuid
        return [
            Step(
                f'reservation of node {node}',
                lambda: self.reserve(node, order.instance),
                lambda: self._teardown.release(node, uuid),
            ),
            # Neutron may be slow: not in a turn.
            Step(
                f'networks of server {uuid}',
                lambda: _await_networks(order),
            ),
            Step(f'turn of server {uuid}', turn.begin),
            Step(
                f'instance_info of node {node}',
                lambda: self.describe(order),
                lambda: self._teardown.clear(node, uuid),
            ),
            Step(
                f'volumes of node {node}',
                lambda: self._volumes.attach(node, order.volumes),
                lambda: self._detach_volumes(node, uuid),
            ),
            Step(f'validation of node {node}', lambda: self._validate(node)),
            Step(
                f'VIFs of node {node}',
                lambda: self._network.attach(node, order.network_info or ()),
                lambda: self._detach(node, uuid),
            ),
            Step(
                f'deploy of node {node}',
                lambda: self._deploy(order, turn),
                lambda: self._teardown.free(node, uuid),
            ),
        ]

    def _deploy(self, order: Order, turn: BuildSlot) -> None:
        _name_ephemeral_device(order.instance)
        seen = self.ask(order, 'active')
        turn.end()
        self.wait(order.instance, order.node, seen)

    def _validate(self, node: NodeId) -> None:
        result = self._waiter.asked(lambda: self._client.validate(node))
        reason = _invalid(result)
        if reason:
            of_image = _is_of_image(reason)
            kind = errors.DeployInvalid if of_image else errors.DeployFailed
            raise kind(f'Ironic cannot deploy node {node}: {reason}')

    def _detach(self, node: NodeId, instance_uuid: str) -> None:
        if self._waiter.look(node).instance_uuid == instance_uuid:
            self._network.detach_all(node)

    def _detach_volumes(self, node: NodeId, instance_uuid: str) -> None:
        if self._waiter.look(node).instance_uuid == instance_uuid:
            self._volumes.detach_all(node)


def why_unfit(facts: NodeFacts, instance_uuid: str) -> str | None:
    """Return why a node cannot take this server; None: it can."""
    state = ProvisionState.parse(facts.provision_state)
    power = PowerState.parse(facts.power_state)
    reasons = (
        (
            facts.instance_uuid not in (None, instance_uuid),
            f'it has server {facts.instance_uuid}',
        ),
        (facts.maintenance, 'it is in maintenance'),
        (facts.retired, 'it is retired'),
        (
            MEANING[state] is not Meaning.CAN_TAKE_A_BUILD,
            f'its provision state is {facts.provision_state}',
        ),
        (
            power in (PowerState.ERROR, PowerState.UNKNOWN),
            f'its power state is {facts.power_state or "unknown"}',
        ),
    )
    return next((phrase for holds, phrase in reasons if holds), None)


def verdict(
    facts: NodeFacts, instance_uuid: str
) -> tuple[Outcome, NodeFacts] | None:
    """Say how a deploy ended; None: it goes on."""
    if facts.instance_uuid != instance_uuid:
        return Outcome.LOST, facts
    state = ProvisionState.parse(facts.provision_state)
    if state is ProvisionState.ACTIVE:
        return Outcome.DONE, facts
    meaning = MEANING[state]
    if meaning is Meaning.FAILED:
        return Outcome.FAILED, facts
    if meaning is Meaning.ON_ITS_WAY or state is ProvisionState.UNKNOWN:
        return None
    return Outcome.LOST, facts


def _sentence(outcome: Outcome, facts: NodeFacts, instance_uuid: str) -> str:
    if outcome is Outcome.FAILED:
        return (
            f'Ironic could not deploy server {instance_uuid} on node '
            f'{facts.uuid}: {facts.last_error}'
        )
    return (
        f'Node {facts.uuid} was taken away from server {instance_uuid} while '
        f'it was deployed; it is {facts.provision_state} and has server '
        f'{facts.instance_uuid} now'
    )


def _is_of_image(reason: str) -> bool:
    """Say whether Ironic refuses a deploy because of the image.

    A bad one is as bad on the next node, which would only be cleaned for it
    (bug 2127087). Anything else may be this node's: ``deploy`` is invalid,
    too, for want of a port or of a deploy kernel.
    """
    return 'image' in reason.lower()


def _invalid(result: Any) -> str | None:
    """Return what is wrong with the interfaces; None: nothing."""
    wrong = (
        f'{name}: {result[name].get("reason")}'
        for name in _REQUIRED
        if name in result and result[name].get('result') is False
    )
    return '; '.join(wrong) or None


def _look(instance: Any) -> None:
    """Stop a build or rebuild whose server is to be deleted.

    :raises faults.Cancelled: it is
    """
    try:
        instance.refresh()
    except nova_exception.InstanceNotFound:
        raise
    except Exception as exc:
        # A conductor that is away is no reason to undo a deploy.
        LOG.debug(
            'Could not look at server %(server)s and will again: %(error)s',
            {'server': instance.uuid, 'error': exc},
        )
        return
    if instance.task_state == task_states.REBUILD_SPAWNING:
        return
    deleting = instance.task_state == task_states.DELETING
    if deleting or instance.vm_state == vm_states.DELETED:
        raise nova_errors.Cancelled(
            f'Server {instance.uuid} was deleted while it was built'
        )


def _await_networks(order: Order) -> None:
    """Look at the networks: Nova's list is there when Neutron has answered."""
    list(order.network_info or ())


def _name_ephemeral_device(instance: Any) -> None:
    """Say where the ephemeral disk is: cloud-init asks (bug 1324286)."""
    if instance.flavor.ephemeral_gb:
        instance.default_ephemeral_device = '/dev/sda1'
        instance.save()
