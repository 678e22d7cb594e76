# SPDX-License-Identifier: Apache-2.0
"""Snapshot of one pool: what Ironic, Nova and Placement returned in one look.

The checks are functions of this value, so each test builds its own cloud. None
in a field means that the service does not let us read it; the checks that need
it then find nothing.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping

from hashring.ring import Host
from ironic_compute.nodes.records import ServerRow
from resource_tracker.delta import KnownProvider
from resource_tracker.node import NodeFacts, NodeId


@dataclasses.dataclass(frozen=True, slots=True)
class PoolHosts:
    """What the daemons of the pool publish in the coordination backend.

    :param rings: the digest of each daemon's ring, by its home host
    """

    known: frozenset[Host] = frozenset()
    served: frozenset[Host] = frozenset()
    rings: Mapping[Host, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A ComputeNode record of an Ironic node.

    :param is_new: a daemon has created it just now, so that the node is not
        offered yet
    """

    node: NodeId
    uuid: str
    host: Host
    is_new: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Server(ServerRow):
    """An Instance of Nova, which may be deleted.

    :param changed_at_s: in seconds since 1970; a delete is a change, too
    :param requests_node: it has a bare metal flavor; None: not read
    """

    uuid: str
    node: NodeId | None
    changed_at_s: float
    requests_node: bool | None = None
    is_delete_unfinished: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """Nova's Service record of a host."""

    is_up: bool = True
    is_disabled: bool = False
    is_forced_down: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregate:
    """A host aggregate of Nova.

    :param zone: its availability zone, if it is one
    """

    name: str
    hosts: frozenset[Host]
    zone: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """A flavor that requests one unit of a custom class, and no CPU.

    :param traits: the custom traits that it requires
    """

    name: str
    resource_class: str
    traits: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderDetails:
    """A provider that was read by itself, because something is odd.

    :param consumers: the consumers of its allocations
    :param classes: those of its inventory; none if only the consumers were
        read, because there are some
    :param is_reserved: whether all of its inventory is; None: not read
    """

    uuid: str
    generation: int
    consumers: frozenset[str]
    classes: frozenset[str] = frozenset()
    is_reserved: bool | None = None

    @classmethod
    def of(
        cls, provider: KnownProvider, consumers: frozenset[str]
    ) -> 'ProviderDetails':
        """Return the details of a provider that was read as a whole."""
        inventories = provider.inventories
        return cls(
            provider.uuid,
            provider.generation,
            consumers,
            frozenset(inventories),
            all(each.get('reserved') for each in inventories.values()),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The providers, by their uuid.

    :param names: the name of each provider
    :param generations: the generation of each, as listed with the names
    :param offered: the providers with a free unit, by resource class
    :param with_trait: the providers with a trait, by trait
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    generations: Mapping[str, int] = dataclasses.field(default_factory=dict)
    offered: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict
    )
    with_trait: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict
    )
    details: Mapping[str, ProviderDetails] = dataclasses.field(
        default_factory=dict
    )


@dataclasses.dataclass(frozen=True, slots=True)
class OtherNodes:
    """Nodes of Ironic, also of other pools, with the fields of a list.

    :param nodes: the resource class of each node; either of all nodes, or of
        those that Nova or Placement name and the pool has not
    :param traits: the traits of the nodes of each resource class
    """

    nodes: Mapping[NodeId, str | None]
    traits: Mapping[str, frozenset[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was read in one look.

    :param now_s: when it was read, in seconds since 1970
    :param nodes: the nodes of the pool in Ironic
    :param all_nodes: nodes of all pools; None: not needed, or Ironic does not
        show the nodes of all projects
    :param vifs: the VIFs of nodes; empty unless all ports were listed
    :param volume_targets: the uuids of the volume targets of nodes
    :param rows: all ComputeNode records of the cell's Ironic nodes
    :param servers: the servers of the pool's hosts, those without a host, and
        all that Ironic or Placement name; Nova has none of the others
    :param services: all Service records of nova-compute, by host
    :param capability_traits: keys of node capabilities that become traits
    """

    now_s: float
    pool: PoolHosts = PoolHosts()
    nodes: Mapping[NodeId, NodeFacts] = dataclasses.field(default_factory=dict)
    all_nodes: OtherNodes | None = None
    vifs: Mapping[NodeId, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
    volume_targets: Mapping[NodeId, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
    rows: tuple[Row, ...] = ()
    servers: Mapping[str, Server] = dataclasses.field(default_factory=dict)
    services: Mapping[Host, Service] = dataclasses.field(default_factory=dict)
    mapped: frozenset[Host] | None = None
    aggregates: tuple[Aggregate, ...] | None = None
    default_zone: str = 'nova'
    flavors: tuple[Flavor, ...] | None = None
    placement: Placement = dataclasses.field(default_factory=Placement)
    capability_traits: frozenset[str] = frozenset()

    def rows_by_node(self) -> dict[NodeId, list[Row]]:
        """Return the records of each node."""
        found: dict[NodeId, list[Row]] = defaultdict(list)
        for row in self.rows:
            found[row.node].append(row)
        return found

    def holders(self) -> dict[NodeId, Host]:
        """Return the host of each node that has one record."""
        return {
            node: rows[0].host
            for node, rows in self.rows_by_node().items()
            if len(rows) == 1
        }

    def providers_by_node(self) -> dict[NodeId, list[str]]:
        """Return the uuids of the providers that name each node of the pool.

        The provider of a node has its uuid as uuid or name.
        """
        found: dict[NodeId, list[str]] = defaultdict(list)
        for uuid, name in self.placement.names.items():
            for node in {NodeId(uuid), NodeId(name)} & self.nodes.keys():
                found[node].append(uuid)
        return found

    def details_by_node(self) -> Iterator[tuple[NodeId, ProviderDetails]]:
        """Yield the nodes of the pool whose provider was read by itself."""
        for node, uuids in self.providers_by_node().items():
            for uuid in uuids:
                if uuid in self.placement.details:
                    yield node, self.placement.details[uuid]
