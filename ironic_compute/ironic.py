# SPDX-License-Identifier: Apache-2.0
"""Ironic, typed: everything we ask of it, and its errors in our words.

Two clients share one session: one waits and repeats when a node is locked,
one never does, for what must not be repeated blindly (reserving a node,
attaching a VIF). Connected lazily, so an Ironic that is down at start stops
nothing. Lists follow all pages and raise on any error: a short list is never
returned. API reference: https://docs.openstack.org/api-ref/baremetal/
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ironicclient import client as ironicclient
from ironicclient import exc as ironic_exc
from ironicclient.common.apiclient import exceptions as api_exc
from keystoneauth1 import exceptions as ksa_exc
from keystoneauth1 import loading as ks_loading
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.gate import Gate
from resource_tracker.errors import MalformedNode
from resource_tracker.node import NodeFacts, fields_for

LOG = logging.getLogger(__name__)

# Offered to Ironic, which takes the highest it knows. 1.46 has conductor
# groups, the least we can work with; 1.82 has shards.
_MINORS = (46, 50, 52, 56, 61, 65, 72, 78, 82, 86, 90, 95)
MICROVERSIONS = [f'1.{minor}' for minor in _MINORS]
_SHARDS_SINCE = (1, 82)

_DELTA_PAGES_MAX = 50


def make_client(conf: Any, gate: Gate) -> 'IronicClient':
    """Make a client from ``[ironic]`` of nova.conf; asks nothing yet.

    :raises errors.ConfigError: there are no credentials
    """
    group = conf.ironic
    if not group.auth_type and not group.endpoint_override:
        raise errors.ConfigError(
            'nova.conf has no credentials for Ironic: set [ironic] auth_type, '
            'for example to password with auth_url, username, password and '
            'system_scope = all'
        )
    if group.peer_list:
        LOG.warning(
            'Ignored [ironic] peer_list: daemons of one pool find each other '
            'through [coordination] backend_url'
        )
    return IronicClient(conf, gate)


class IronicClient:
    """A typed client; any thread may call. Changes wait at the gate.

    Every method raises ``errors.IronicUnavailable`` if Ironic does not
    answer, ``errors.NodeNotFound`` if it has no such node, and
    ``errors.IronicRefused`` with Ironic's text if it will not.
    """

    def __init__(self, conf: Any, gate: Gate) -> None:
        self._conf = conf
        self._gate = gate
        self._connecting = threading.Lock()
        self._clients: dict[bool, Any] = {}

    # Connection

    def _client(self, *, retry: bool) -> Any:
        with self._connecting:
            if retry not in self._clients:
                self._clients[retry] = self._connect(retry)
            return self._clients[retry]

    def _connect(self, retry: bool) -> Any:
        group = self._conf.ironic
        auth = None
        if group.auth_type:
            auth = ks_loading.load_auth_from_conf_options(self._conf, 'ironic')
        session = ks_loading.load_session_from_conf_options(
            self._conf, 'ironic', auth=auth
        )
        arguments: dict[str, Any] = {}
        if group.endpoint_override:
            arguments['endpoint'] = group.endpoint_override
        client = ironicclient.get_client(
            '1',
            session=session,
            # A list is negotiated; its type is declared too narrowly.
            os_ironic_api_version=MICROVERSIONS,  # type: ignore[arg-type]
            valid_interfaces=group.valid_interfaces,
            service_type=group.service_type,
            region_name=group.region_name,
            max_retries=(group.api_max_retries if retry else 0),
            retry_interval=(group.api_retry_interval if retry else 0),
            **arguments,
        )
        client.negotiate_api_version()
        return client

    def microversion(self) -> tuple[int, int]:
        """Return the API version that Ironic and we have in common."""
        with _translated('ask Ironic for its version'):
            client = self._client(retry=True)
            major, minor = str(client.current_api_version).split('.')
            return int(major), int(minor)

    def check_pool(self) -> None:
        """Refuse a pool that this Ironic cannot tell apart.

        :raises errors.ConfigError: a shard is set, Ironic has no shards
        """
        version = self.microversion()
        if self._conf.ironic.shard and version < _SHARDS_SINCE:
            raise errors.ConfigError(
                f'[ironic] shard is {self._conf.ironic.shard}, but this '
                f'Ironic knows no shards (its API ends at '
                f'{version[0]}.{version[1]}, shards came with 1.82): upgrade '
                f'Ironic, or use [ironic] conductor_group instead'
            )

    def _pool(self) -> dict[str, Any]:
        """Return the filters of our pool for a list of nodes."""
        group = self._conf.ironic
        filters: dict[str, Any] = {}
        if group.conductor_group is not None:
            filters['conductor_group'] = group.conductor_group
        if group.shard is not None:
            filters['shards'] = [group.shard]
        return filters

    def in_pool(self, facts: NodeFacts) -> bool:
        """Say whether a node belongs to our conductor group and shard."""
        group = self._conf.ironic
        wanted_group, shard = group.conductor_group, group.shard
        if wanted_group is not None and (
            facts.conductor_group.lower() != wanted_group.lower()
        ):
            return False
        return shard is None or facts.shard == shard

    # Reading

    def nodes(self) -> tuple[NodeFacts, ...]:
        """Return all nodes of the pool."""
        fields = list(fields_for(self.microversion()))
        with _translated('list the nodes'):
            found = self._client(retry=True).node.list(
                limit=0, fields=fields, **self._pool()
            )
        return tuple(_parsed(found))

    def changed_since(
        self, updated_at: str | None, limit: int = 100
    ) -> list[NodeFacts]:
        """Return the nodes that changed lately, newest first.

        :param updated_at: pages are read until one is older than this; None
            reads one page
        """
        found: list[NodeFacts] = []
        marker: str | None = None
        for _ in range(_DELTA_PAGES_MAX):
            with _translated('list the changed nodes'):
                page = self._client(retry=True).node.list(
                    limit=limit,
                    marker=marker,
                    detail=True,
                    sort_key='updated_at',
                    sort_dir='desc',
                    **self._pool(),
                )
            facts = list(_parsed(page))
            found += facts
            if updated_at is None or len(page) < limit or not facts:
                break
            if (facts[-1].updated_at or '') < updated_at:
                break
            marker = facts[-1].uuid
        if updated_at is None:
            return found
        return [f for f in found if (f.updated_at or '') >= updated_at]

    def node(self, node: str) -> NodeFacts:
        """Return one node as it is now."""
        with _translated(f'read node {node}'):
            raw = self._client(retry=True).node.get(node).to_dict()
        return NodeFacts.parse(raw)

    def node_of_instance(self, instance_uuid: str) -> NodeFacts | None:
        """Return the node that has an instance."""
        try:
            with _translated(f'find the node of instance {instance_uuid}'):
                found = self._client(retry=True).node.get_by_instance_uuid(
                    instance_uuid
                )
        except errors.NodeNotFound:
            return None
        return NodeFacts.parse(found.to_dict())

    def raw(self, node: str, fields: Sequence[str]) -> Mapping[str, Any]:
        """Return fields of a node that are nobody's facts."""
        with _translated(f'read node {node}'):
            got = self._client(retry=True).node.get(node, fields=list(fields))
        raw: Mapping[str, Any] = got.to_dict()
        return raw

    def validate(self, node: str) -> Mapping[str, Any]:
        """Return per interface whether a node can be deployed, and why not."""
        with _translated(f'validate node {node}'):
            raw: Mapping[str, Any] = (
                self._client(retry=True).node.validate(node).to_dict()
            )
        return raw

    def ports(self, node: str) -> list[Mapping[str, Any]]:
        """Return the ports of a node, detailed."""
        with _translated(f'list the ports of node {node}'):
            found = self._client(retry=True).port.list(
                node=node, detail=True, limit=0
            )
        return [port.to_dict() for port in found]

    def portgroups(self, node: str) -> list[Mapping[str, Any]]:
        """Return the port groups of a node, detailed."""
        with _translated(f'list the port groups of node {node}'):
            found = self._client(retry=True).portgroup.list(
                node=node, detail=True, limit=0
            )
        return [group.to_dict() for group in found]

    # Changing

    def reserve(self, node: str, instance_uuid: str) -> None:
        """Put an instance on a node: Ironic refuses a second one.

        :raises errors.NodeAssociated: another instance has it
        """
        patch = [
            {'op': 'add', 'path': '/instance_uuid', 'value': instance_uuid}
        ]
        self._gate.wait()
        try:
            with _translated(f'reserve node {node}'):
                self._client(retry=False).node.update(node, patch)
        except (errors.NodeLocked, errors.IronicRefused) as exc:
            present = self.node(node).instance_uuid
            if present == instance_uuid:
                return
            if present is not None:
                raise errors.NodeAssociated(
                    f'Node {node} has instance {present} already'
                ) from exc
            raise

    def release(self, node: str, instance_uuid: str) -> None:
        """Take an instance off a node; another's instance stays."""
        if self.node(node).instance_uuid != instance_uuid:
            return
        self.patch(node, [{'op': 'remove', 'path': '/instance_uuid'}])

    def patch(self, node: str, patch: Sequence[Mapping[str, Any]]) -> None:
        """Change fields of a node."""
        self._gate.wait()
        with _translated(f'change node {node}'):
            self._client(retry=True).node.update(node, list(patch))

    def set_provision_state(
        self,
        node: str,
        target: str,
        *,
        configdrive: Mapping[str, Any] | bytes | None = None,
        rescue_password: str | None = None,
    ) -> None:
        """Ask for a provision state: active, deleted, rebuild, rescue …"""
        arguments: dict[str, Any] = {}
        if configdrive is not None:
            arguments['configdrive'] = configdrive
        if rescue_password is not None:
            arguments['rescue_password'] = rescue_password
        self._gate.wait()
        with _translated(f'set node {node} to {target}'):
            self._client(retry=True).node.set_provision_state(
                node, target, **arguments
            )

    def set_power_state(
        self,
        node: str,
        target: str,
        *,
        soft: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        """Ask for power on, off or reboot."""
        self._gate.wait()
        with _translated(f'set the power of node {node} to {target}'):
            self._client(retry=True).node.set_power_state(
                node, target, soft=soft, timeout=timeout_s
            )

    def inject_nmi(self, node: str) -> None:
        """Send a non-maskable interrupt."""
        self._gate.wait()
        with _translated(f'send an NMI to node {node}'):
            self._client(retry=True).node.inject_nmi(node)

    # VIFs

    def vifs(self, node: str) -> list[str]:
        """Return the ids of the VIFs attached to a node."""
        with _translated(f'list the VIFs of node {node}'):
            found = self._client(retry=True).node.vif_list(node)
        return [vif.id for vif in found]

    def vif_attach(self, node: str, vif: str) -> None:
        """Attach a VIF; one that is attached to this very node is fine.

        A 409 may also mean that no port is free or that the node is
        locked, so its text is not believed: the list is.
        """
        self._gate.wait()
        try:
            with _translated(f'attach VIF {vif} to node {node}'):
                self._client(retry=False).node.vif_attach(node, vif)
        except (errors.NodeLocked, errors.IronicRefused):
            if vif not in self.vifs(node):
                raise

    def vif_detach(self, node: str, vif: str) -> None:
        """Detach a VIF; one that is not attached is fine."""
        self._gate.wait()
        try:
            with _translated(f'detach VIF {vif} from node {node}'):
                self._client(retry=True).node.vif_detach(node, vif)
        except (errors.NodeNotFound, errors.IronicRefused):
            if vif in self.vifs(node):
                raise

    # Consoles

    def console(self, node: str) -> Mapping[str, Any]:
        """Return whether a console is enabled, and where."""
        with _translated(f'read the console of node {node}'):
            raw: Mapping[str, Any] = self._client(retry=True).node.get_console(
                node
            )
        return raw

    def set_console_mode(self, node: str, enabled: bool) -> None:
        """Switch the console of a node on or off."""
        self._gate.wait()
        with _translated(f'switch the console of node {node}'):
            self._client(retry=True).node.set_console_mode(node, enabled)


def _parsed(records: Sequence[Any]) -> Iterator[NodeFacts]:
    """Parse records; one that cannot be read harms itself alone."""
    for record in records:
        try:
            yield NodeFacts.parse(record.to_dict())
        except MalformedNode as exc:
            LOG.warning('%(exc)s; left it out', {'exc': exc})


_UNAVAILABLE = (
    ksa_exc.ClientException,
    api_exc.ConnectionError,
    api_exc.ConnectionRefused,
    api_exc.HttpServerError,
    api_exc.Unauthorized,
    api_exc.RequestTimeout,
    ironic_exc.AmbiguousAuthSystem,
)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn the client's exceptions into ours."""
    try:
        yield
    except (api_exc.NotFound, ksa_exc.NotFound) as exc:
        raise errors.NodeNotFound(f'Ironic could not {what}: {exc}') from exc
    except (api_exc.Conflict, ksa_exc.Conflict) as exc:
        raise _conflict(what, exc) from exc
    except _UNAVAILABLE as exc:
        raise errors.IronicUnavailable(
            f'Ironic did not answer when asked to {what}: {exc}'
        ) from exc
    except api_exc.ClientException as exc:
        raise errors.IronicRefused(f'Ironic refused to {what}: {exc}') from exc


def _conflict(what: str, exc: Exception) -> errors.IronicComputeError:
    text = str(exc)
    if 'associated' in text:
        return errors.NodeAssociated(f'Ironic refused to {what}: {text}')
    if 'locked' in text:
        return errors.NodeLocked(f'Ironic could not {what} yet: {text}')
    return errors.IronicRefused(f'Ironic refused to {what}: {text}')
