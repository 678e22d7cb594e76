# SPDX-License-Identifier: Apache-2.0
"""Reads the list of all nodes of the pool, with pauses for other requests."""

from collections.abc import Sequence

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.batching import HalfTimePause
from ironic_compute.ironic_api.reader import IronicReader
from resource_tracker.node import NodeFacts

LOG = logging.getLogger(__name__)


def list_nodes(
    client: IronicReader, clock: Clock, *, is_first: bool
) -> Sequence[NodeFacts]:
    """Read all nodes of the pool; blocks.

    Only the first list is read without pauses, because it ends a restart.
    During any other list, builds need the same Ironic more urgently.

    :raises errors.IronicComputeError: the list could not be read
    """
    started_s = clock.now_s()
    if is_first:
        nodes = client.list_nodes()
    else:
        nodes = client.list_nodes(pause=HalfTimePause(clock))
    LOG.debug(
        'Read %(count)d nodes in %(seconds).1f s',
        {'count': len(nodes), 'seconds': clock.now_s() - started_s},
    )
    return nodes
