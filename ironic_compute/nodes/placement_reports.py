# SPDX-License-Identifier: Apache-2.0
"""Creates a worker's reconciler from nova.conf, and has it audit now and then.

The file of what Placement acknowledged lies below ``[ironic_compute]
state_path``. There is one file for each host, because a machine may serve
several hosts and each worker reads only its own.
"""

import glob
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova import utils as nova_utils
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute import access_errors, errors
from ironic_compute.catalogue import Check
from ironic_compute.gate import Gate, LeaseGate
from ironic_compute.gated_transport import gate_transport
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.node_findings import count_findings
from ironic_compute.nodes.pins import read_pin
from resource_tracker.disk_cache import FileDiskCache
from resource_tracker.errors import PlacementError
from resource_tracker.meter import Meter
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.placement import Placement
from resource_tracker.reconciler import Reconciler

LOG = logging.getLogger(__name__)


def make_placement(
    conf: Any, clock: Clock, meter: Meter, gate: Gate
) -> Placement:
    """Create a client of Placement from nova.conf, without a request.

    :param gate: at which writes wait
    :raises errors.ConfigError: nova.conf has no usable credentials
    """
    adapter = make_adapter(conf)
    gate_transport(adapter.session, gate)
    return Placement(
        adapter,
        meter=meter,
        clock=clock,
        reconnect=lambda adapter: make_adapter(conf, adapter.auth),
    )


def make_adapter(conf: Any, auth: Any = None) -> Any:
    """Create keystoneauth1's adapter for Placement, without a request.

    :param conf: Nova's options, with the group ``placement``
    :param auth: a plugin that may have a token already; None: a new one
    :raises errors.ConfigError: nova.conf has no usable credentials
    """
    options = conf.placement
    if not (options.auth_type or options.auth_section):
        raise errors.ConfigError(
            'nova.conf has no credentials for Placement: set [placement] '
            'auth_type, for example to password with auth_url, username, '
            'password and project_name'
        )
    with access_errors.translated_credentials('placement'):
        return nova_utils.get_ksa_adapter('placement', ksa_auth=auth)


def make_reconciler(
    conf: Any,
    host: Host,
    gate: LeaseGate,
    clock: Clock,
    meter: Meter,
    placement: Placement,
) -> Reconciler:
    """Create a worker's reconciler, without a request to Placement.

    Warns of Nova's files about providers, which have no effect.

    :param conf: Nova's options, with the group ``resource_tracker``
    """
    options = conf.resource_tracker
    warn_of_provider_files(conf.compute.provider_config_location)
    return Reconciler(
        placement,
        gate,
        clock,
        parallelism=options.placement_parallelism,
        read_rate=options.read_rate,
        disk_cache=FileDiskCache(disk_cache_path(conf, host), host),
        meter=meter,
    )


def warn_of_provider_files(folder: str) -> None:
    """Warn if an operator describes providers in files of Nova.

    Nova's own tracker adds the traits and inventories of these files, and this
    one does not. Flavors that ask for them find no node any more.

    :param folder: ``[compute] provider_config_location``
    """
    files = glob.glob('*.yaml', root_dir=folder) if folder else []
    if files:
        LOG.warning(
            'Ignored %(files)s in %(folder)s ([compute] '
            'provider_config_location of nova.conf): the providers of nodes '
            'have the traits that the nodes have in Ironic, and one resource '
            'class; set the traits in Ironic',
            {'files': ', '.join(sorted(files)), 'folder': folder},
        )


def disk_cache_path(conf: Any, host: Host) -> pathlib.Path:
    """Return the path of the file with what Placement acknowledged.

    :param host: the host whose worker writes the file
    """
    return pathlib.Path(conf.ironic_compute.state_path, 'placement', host)


def audit_providers(reconciler: Reconciler) -> None:
    """Find providers that another client has written, and read them again.

    Sends one request; its failure is logged, and the next audit repeats it.
    """
    try:
        count = reconciler.audit_providers()
    except PlacementError as exc:
        LOG.warning(
            "Could not compare Placement's providers with the ones it "
            'acknowledged; the next audit tries again: %(error)s',
            {'error': exc},
        )
        return
    if count:
        LOG.info(
            'Found %(count)d providers that others have written; reading '
            'them again',
            {'count': count},
        )


class WorkerGauges:
    """Figures of a worker, computed whenever its metrics are read."""

    def __init__(
        self,
        held_nodes: HeldNodes,
        reconciler: Reconciler,
        misplaced: Callable[[], Mapping[NodeId, Host]],
    ) -> None:
        self._held_nodes = held_nodes
        self._reconciler = reconciler
        self._misplaced = misplaced

    def held_facts(self) -> Iterable[NodeFacts]:
        """Return the newest facts of each held node."""
        found = map(self._held_nodes.facts, self._held_nodes.rows())
        return [facts for facts in found if facts is not None]

    def pinned_count(self) -> int:
        """Return the number of held nodes that an operator has pinned."""
        rows = self._held_nodes.rows().values()
        return sum(read_pin(row) is not None for row in rows)

    def findings(self) -> Mapping[Check, int]:
        """Return how many held nodes each check of fsck finds."""
        return count_findings(self._held_nodes)

    def waiting(self) -> tuple[int, float]:
        """Return the number of waiting changes and the oldest's age in s."""
        return self._reconciler.backlog()

    def misplaced(self) -> Mapping[NodeId, Host]:
        """Return the nodes that another host should hold, and which."""
        return self._misplaced()
