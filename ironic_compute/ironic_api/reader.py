# SPDX-License-Identifier: Apache-2.0
"""Client of Ironic's API: the requests that only read, with types.

A list follows all pages and raises on any error, so a list that is returned is
complete. API reference: https://docs.openstack.org/api-ref/baremetal/
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from oslo_log import log as logging

from hashring.clock import SystemClock
from ironic_compute import errors
from ironic_compute.ironic_api import rights
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.ironic_api.session import IronicSession
from resource_tracker.errors import MalformedNode
from resource_tracker.node import NodeFacts, fields_for

LOG = logging.getLogger(__name__)

_SHARDS_SINCE = (1, 82)
_DELTA_PAGES_MAX = 100
# The first page is short, because an idle pool reads only that page, every few
# seconds.
_FIRST_PAGE_NODES = 20

Record = Mapping[str, Any]
# What all pools' nodes are listed with: it tells which flavors fit a node.
_FIELDS_OF_ANY_POOL = ['uuid', 'resource_class', 'traits', 'properties']
# The most that Ironic returns in one page unless it is configured otherwise.
_LONGEST_PAGE = 1000
# The cheapest request that Ironic does not answer without a valid token.
_ONE_NODE = '/v1/nodes?limit=1&fields=uuid'


def _no_pause() -> None:
    """Continue with the next page at once."""


class IronicReader:
    """Client that only reads, and therefore needs no lease; thread-safe.

    Every method blocks for its requests. Every method raises
    ``errors.IronicUnavailable`` if Ironic does not answer,
    ``errors.NodeNotFound`` if Ironic has no such node, and
    ``errors.IronicRefused`` with Ironic's text if Ironic refuses the request.

    :param conf: Nova's options, with the group ``ironic``
    :raises errors.ConfigError: the credentials are missing or incomplete
    """

    def __init__(self, conf: Any) -> None:
        self._options = conf.ironic
        self._session = IronicSession(conf)
        self._clock = SystemClock()
        self._redacted: frozenset[str] = frozenset()

    def set_meter(
        self, meter: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """Measure each request with the context manager of ``meter(action)``.

        Call it before the first request.
        """
        self._session.meter = meter

    def read_microversion(self) -> tuple[int, int]:
        """Return the highest API version that Ironic and this client share."""
        return self._session.read_microversion()

    def check_access(self, timeout_s: float) -> None:
        """Check that Ironic answers and accepts the token.

        :param timeout_s: limit for the request; negotiating the API version
            and fetching a token may take longer
        """
        with self._session.request('prove that it is reached') as client:
            client.http_client.json_request(
                'GET', _ONE_NODE, timeout=timeout_s
            )

    def read_date(self) -> str | None:
        """Return the time at which Ironic answers; None if it does not say.

        As in the header ``Date`` of HTTP.
        """
        with self._session.request('say its time') as client:
            answer, _ = client.http_client.json_request('GET', _ONE_NODE)
        date = answer.headers.get('Date')
        return None if date is None else str(date)

    # The pool

    def check_pool(self) -> None:
        """Check that Ironic can filter the nodes of this pool.

        :raises errors.ConfigError: a shard is set, but Ironic has no shards
        """
        version = self.read_microversion()
        if self._options.shard and version < _SHARDS_SINCE:
            raise errors.ConfigError(
                f'[ironic] shard is {self._options.shard}, but this '
                f'Ironic knows no shards (its API ends at '
                f'{version[0]}.{version[1]}, shards came with 1.82): upgrade '
                f'Ironic, or use [ironic] conductor_group instead'
            )

    def _filters(self) -> dict[str, Any]:
        """Return the query parameters that select the nodes of this pool."""
        filters: dict[str, Any] = {}
        if self._options.conductor_group is not None:
            filters['conductor_group'] = self._options.conductor_group
        if self._options.shard is not None:
            filters['shards'] = [self._options.shard]
        return filters

    @property
    def has_shard(self) -> bool:
        """Whether the pool is one shard; notifications lack the shard."""
        return self._options.shard is not None

    @property
    def pool(self) -> NodePool:
        """The nodes that nova.conf selects."""
        return NodePool(self._options.conductor_group, self._options.shard)

    def is_in_pool(self, facts: NodeFacts) -> bool:
        """Return whether a node has this pool's conductor group and shard."""
        return self.pool.contains(facts)

    def is_in_group(self, conductor_group: str) -> bool:
        """Return whether a node with this conductor group may be of this pool.

        True for any group if nova.conf sets none.
        """
        return self.pool.may_contain(conductor_group)

    # Reading

    def list_nodes(
        self, limit: int = 500, pause: Callable[[], None] = _no_pause
    ) -> tuple[NodeFacts, ...]:
        """Return all nodes of the pool, without their ``updated_at``.

        A malformed record is logged and left out.

        :param limit: nodes in one page; a page longer than Ironic's own
            ``[api] max_limit`` takes several requests
        :param pause: called between two pages
        """
        # Ironic may have been upgraded since the last list.
        self._session.drop_client()
        fields = list(fields_for(self.read_microversion()))
        found: list[NodeFacts] = []
        marker: str | None = None
        while True:
            read_at_s = self._clock.now_s()
            page = self._page(
                'list the nodes', limit=limit, marker=marker, fields=fields
            )
            found += self._nodes_of_pool(page, read_at_s)
            if len(page) < limit:
                return tuple(found)
            marker = page[-1].uuid
            pause()

    def list_nodes_of_all_pools(self) -> Iterator[NodeFacts]:
        """Yield all nodes of Ironic with some of their facts.

        A malformed record is left out. The nodes of other projects are missing
        unless :meth:`can_list_all_nodes`.
        """
        marker: str | None = None
        while True:
            with self._session.request('list all nodes') as client:
                page = client.node.list(
                    limit=_LONGEST_PAGE,
                    marker=marker,
                    fields=_FIELDS_OF_ANY_POOL,
                )
            for record in page:
                with contextlib.suppress(MalformedNode):
                    yield NodeFacts.parse(record.to_dict())
            if len(page) < _LONGEST_PAGE:
                return
            marker = page[-1].uuid

    def _page(self, action: str, **query: Any) -> Sequence[Any]:
        """Return one page of nodes; a page shorter than its limit is the last.

        If Ironic's own limit is lower, ironicclient follows Ironic's links to
        the rest of the page. These links lack the filters, so the page may
        contain nodes of other pools.
        """
        with self._session.request(action) as client:
            page: Sequence[Any] = client.node.list(**query, **self._filters())
        return page

    def _nodes_of_pool(
        self, records: Sequence[Any], read_at_s: float
    ) -> Iterator[NodeFacts]:
        """Yield the nodes of this pool in a page; log malformed records."""
        for record in records:
            try:
                facts = self._parse(record, read_at_s)
            except MalformedNode as exc:
                LOG.warning('%(exc)s; ignored it', {'exc': exc})
            else:
                if self.is_in_pool(facts):
                    yield facts

    def _parse(self, node: Any, read_at_s: float) -> NodeFacts:
        """Return the facts of a node that ironicclient has read.

        A last error that Ironic does not show is none: else each power action
        would seem to have failed.

        :raises MalformedNode: the record is not one of a node
        """
        record = node.to_dict()
        redacted = self._log_redacted(record)
        if 'last_error' in redacted:
            record['last_error'] = None
        return NodeFacts.parse(record, read_at_s)

    def _log_redacted(self, record: Record) -> tuple[str, ...]:
        """Log once which fields Ironic does not show; return those."""
        redacted = rights.redacted_fields(record)
        for field in set(redacted) - self._redacted:
            self._redacted |= {field}
            LOG.error(
                'Ironic does not show %(field)s of nodes, because the user '
                'below [ironic] in nova.conf lacks %(rule)s: give it the role '
                'service with system_scope = all, or allow the rule in '
                "Ironic's policy file",
                {'field': field, 'rule': rights.field_rule(field)},
            )
        return redacted

    def list_changed_nodes(
        self, updated_at: str | None, limit: int = 100
    ) -> list[NodeFacts]:
        """Return the nodes of the pool that changed lately, newest first.

        :param updated_at: return the nodes changed at this time or later; None
            returns the first page
        :param limit: nodes in one page; the first page is shorter
        :raises errors.TooManyChanges: these nodes fill more than 100 pages
        """
        found: list[NodeFacts] = []
        marker: str | None = None
        size = limit if updated_at is None else min(limit, _FIRST_PAGE_NODES)
        for _ in range(_DELTA_PAGES_MAX):
            read_at_s = self._clock.now_s()
            page = self._changed_page(size, marker)
            found += self._nodes_of_pool(page, read_at_s)
            if (
                updated_at is None
                or len(page) < size
                or _stamp(page[-1]) < updated_at
            ):
                oldest = updated_at or ''
                return [f for f in found if (f.updated_at or '') >= oldest]
            marker, size = page[-1].uuid, limit
        newest = max((f.updated_at or '' for f in found), default='')
        raise errors.TooManyChanges(newest)

    def _changed_page(self, limit: int, marker: str | None) -> Sequence[Any]:
        return self._page(
            'list the changed nodes',
            limit=limit,
            marker=marker,
            detail=True,
            sort_key='updated_at',
            sort_dir='desc',
        )

    def read_node(self, node: str) -> NodeFacts:
        """Return the present facts of one node."""
        read_at_s = self._clock.now_s()
        with self._session.request(f'read node {node}') as client:
            return self._parse(client.node.get(node), read_at_s)

    def can_list_all_nodes(self) -> bool:
        """Return whether the credentials show the nodes of all projects.

        With lesser credentials Ironic hides the nodes of other projects
        without an error: 404 for a node, short lists. It refuses only a
        request that names another project (policy
        ``baremetal:node:list_all``), so such a request is made here. Without
        ``baremetal:node:get`` it answers 404 for each node that it lists.
        """
        try:
            with self._session.request('show the nodes of others') as client:
                client.http_client.json_request('GET', rights.NO_PROJECT_NODES)
            return not self._are_hidden()
        except errors.IronicRefused:
            return False

    def _are_hidden(self) -> bool:
        """Return whether a node that is listed cannot be read by itself."""
        node = self._first_listed()
        if node is None:
            return False
        try:
            self.read_fields(node, ['uuid'])
        except errors.NodeNotFound:
            # It may have been deleted since it was listed.
            return self._first_listed() == node
        return False

    def _first_listed(self) -> str | None:
        with self._session.request('list a node') as client:
            _, body = client.http_client.json_request('GET', _ONE_NODE)
        found = body.get('nodes') or [None]
        return found[0] and str(found[0]['uuid'])

    def missing_rights(self, node: str | None) -> list[rights.Trial]:
        """Return the rights that the user lacks, among those of ``rights``.

        Changes nothing. Without the right to read a node, Ironic denies that
        there is one, so that no other right about it can be tried.

        :param node: any node that a list has shown; None: there is none
        """
        is_hidden = False
        with contextlib.suppress(errors.IronicForbidden):
            is_hidden = self._are_hidden()
        node = None if is_hidden else node
        lacking = [rights.READ_NODE] if is_hidden else []
        lacking += self._redacted_of(node) if node else []
        tried = rights.trials(node)
        return [*lacking, *(each for each in tried if self._is_denied(each))]

    def _redacted_of(self, node: str) -> Iterator[rights.Trial]:
        """Yield the rights without which fields of a node are redacted."""
        try:
            record = self.read_fields(node, rights.GUARDED_FIELDS)
        except (errors.NodeNotFound, errors.IronicForbidden):
            return  # Deleted since it was listed.
        for field in rights.redacted_fields(record):
            rule = rights.field_rule(field)
            yield rights.Trial(rule, 'GET', f'/v1/nodes/{node}')

    def _is_denied(self, trial: rights.Trial) -> bool:
        body = {} if trial.body is None else {'body': trial.body}
        try:
            with self._session.request(f'try {trial.rule}') as client:
                client.http_client.json_request(
                    trial.method, trial.url, **body
                )
        except errors.IronicForbidden:
            return True
        except errors.NoConductor:
            return False  # Ironic looks for one after it has looked at rights.
        except errors.IronicUnavailable as exc:
            if exc.http_status is None or isinstance(exc, errors.Untouched):
                raise
            return False  # Hardware may fail.
        except errors.IronicComputeError:
            return False  # Most requests are wrong.
        return False

    def read_node_of_instance(self, instance_uuid: str) -> NodeFacts | None:
        """Return the node that has an instance; None if no node has it."""
        action = f'find the node of instance {instance_uuid}'
        read_at_s = self._clock.now_s()
        try:
            with self._session.request(action) as client:
                found = client.node.get_by_instance_uuid(instance_uuid)
                return self._parse(found, read_at_s)
        except errors.NodeNotFound:
            return None

    def read_fields(self, node: str, fields: Sequence[str]) -> Record:
        """Return fields of a node that :class:`NodeFacts` does not contain."""
        with self._session.request(f'read node {node}') as client:
            record: Record = client.node.get(
                node, fields=list(fields)
            ).to_dict()
        self._log_redacted(record)
        return record

    def validate_node(self, node: str) -> Record:
        """Return Ironic's validation of a node, by interface.

        Each value has ``result`` and, if that is not True, ``reason``.
        """
        action = f'validate node {node}'
        with self._session.request(action) as client:
            record: Record = client.node.validate(node).to_dict()
        return record

    def list_ports(self, node: str) -> list[Record]:
        """Return the ports of a node with all fields."""
        action = f'list the ports of node {node}'
        with self._session.request(action) as client:
            found = client.port.list(node=node, detail=True, limit=0)
        return [port.to_dict() for port in found]

    def list_portgroups(self, node: str) -> list[Record]:
        """Return the port groups of a node with all fields."""
        action = f'list the port groups of node {node}'
        with self._session.request(action) as client:
            found = client.portgroup.list(node=node, detail=True, limit=0)
        return [group.to_dict() for group in found]

    def list_vifs(self, node: str) -> list[str]:
        """Return the ids of the VIFs attached to a node."""
        action = f'list the VIFs of node {node}'
        with self._session.request(action) as client:
            return [vif.id for vif in client.node.vif_list(node)]

    def list_all_vifs(self) -> dict[str, tuple[str, ...]]:
        """Return the VIFs on the ports of all nodes, by node.

        One request for each thousand ports. A VIF on a port group is missing.
        """
        with self._session.request('list all ports') as client:
            ports = client.port.list(
                limit=0, fields=['node_uuid', 'internal_info']
            )
        found: dict[str, tuple[str, ...]] = {}
        for port in (each.to_dict() for each in ports):
            vif = (port.get('internal_info') or {}).get('tenant_vif_port_id')
            if vif:
                node = port['node_uuid']
                found[node] = (*found.get(node, ()), str(vif))
        return found

    def read_console(self, node: str) -> Record:
        """Return ``console_enabled`` and ``console_info`` of a node."""
        action = f'read the console of node {node}'
        with self._session.request(action) as client:
            record: Record = client.node.get_console(node)
        return record

    def list_volume_connectors(self, node: str) -> list[Record]:
        """Return a node's identifiers in storage networks (IQN, WWN, IP)."""
        action = f'list the volume connectors of node {node}'
        with self._session.request(action) as client:
            found = client.node.list_volume_connectors(
                node, detail=True, limit=0
            )
        return [connector.to_dict() for connector in found]

    def list_volume_targets(self, node: str) -> list[Record]:
        """Return the volumes that a node uses, with all fields."""
        action = f'list the volume targets of node {node}'
        with self._session.request(action) as client:
            found = client.node.list_volume_targets(node, detail=True, limit=0)
        return [target.to_dict() for target in found]

    def list_all_volume_targets(self) -> dict[str, tuple[str, ...]]:
        """Return the uuids of the volume targets of all nodes, by node."""
        with self._session.request('list all volume targets') as client:
            targets = client.volume_target.list(
                limit=0, fields=['uuid', 'node_uuid']
            )
        found: dict[str, tuple[str, ...]] = {}
        for each in targets:
            node = str(each.node_uuid)
            found[node] = (*found.get(node, ()), str(each.uuid))
        return found


def _stamp(record: Any) -> str:
    """Return ``updated_at``; empty, so oldest, if a node never changed."""
    return str(getattr(record, 'updated_at', None) or '')
