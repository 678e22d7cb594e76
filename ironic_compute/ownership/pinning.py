# SPDX-License-Identifier: Apache-2.0
"""Pinning: an operator's order which host should hold one node.

The worker of the node's holder writes the pin into the node's row, and nothing
else. The rebalancer then pushes the node to its new target if the node is
free. A node with a server that moves gets its pin together with its new holder
(``eviction``).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute.errors import GateShut
from ironic_compute.gate import Gate, without_waiting
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.pins import Pin, read_pin, set_pin
from ironic_compute.ownership.eviction import (
    Evictor,
    Refused,
    Terms,
    answered,
    no_lease,
)
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False, slots=False)
class Pinning:
    """Pins and unpins the nodes of one host.

    Any thread may call, and all methods block for some requests.
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _client: IronicClient
    _gate: Gate
    _evictor: Evictor

    def pin(
        self, node: NodeId, pin: Pin, *, changes_zone: bool = False
    ) -> None:
        """Pin a node that is free, or that the host of the pin holds.

        :param changes_zone: also to a host of another availability zone
        :raises Refused: nothing was written; the message says why
        """
        self._gate.wait()
        terms = Terms(changes_zone=changes_zone)
        with self._pinnable_row(node, pin.host, terms) as row:
            self._write(row, pin)
        LOG.info(
            'Pinned node %(node)s to host %(host)s, ordered by %(by)s',
            {'node': node, 'host': pin.host, 'by': pin.by},
        )

    def check(
        self, node: NodeId, pin: Pin, *, changes_zone: bool = False
    ) -> None:
        """Read what :meth:`pin` would read, and write nothing.

        :raises Refused: :meth:`pin` would refuse now
        """
        terms = Terms(changes_zone=changes_zone)
        with self._pinnable_row(node, pin.host, terms):
            pass

    def check_may_replace(self, node: NodeId, pin: Pin) -> None:
        """Check that nobody has pinned a node to another host.

        :raises Refused: somebody has
        """
        row = self._held_nodes.row(node)
        former = None if row is None else read_pin(row)
        if former is not None and former.host != pin.host:
            raise Refused(
                f'Node {node} is pinned to host {former.host} by {former.by}; '
                f'add --replace, or end that first: ironic-computectl node '
                f'unpin {node}'
            )

    def unpin(self, node: NodeId) -> Pin | None:
        """Remove the pin of a node.

        :returns: the pin; None: it had none, and nothing was written
        :raises Refused: nothing was written; the message says why
        """
        self._gate.wait()
        with self._held_row(node) as row:
            former = read_pin(row)
            if former is None:
                return None
            self._write(row, None)
        LOG.info(
            'Unpinned node %(node)s from host %(host)s',
            {'node': node, 'host': former.host},
        )
        return former

    @contextlib.contextmanager
    def _held_row(self, node: NodeId) -> Iterator[Any]:
        """Yield the locked row of a held node.

        :raises Refused: this host does not hold the node
        """
        here = self._held_nodes.host
        with self._held_nodes.locked_row(node) as row, without_waiting():
            current = answered(lambda: self._compute_nodes.read_by_name(node))
            if row is None or current is None or current.host != here:
                raise Refused(
                    f'Host {here} does not hold node {node} any more'
                )
            if read_pin(current) != read_pin(row):
                # A write that had no answer was carried out later.
                set_pin(row, read_pin(current))
            yield row

    @contextlib.contextmanager
    def _pinnable_row(
        self, node: NodeId, target: Host, terms: Terms
    ) -> Iterator[Any]:
        with self._held_row(node) as row:
            if target == self._held_nodes.host:
                self._evictor.check_takes_nodes(target)
            else:
                self._evictor.check_target(target, terms)
                self._check_free(node)
            yield row

    def _check_free(self, node: NodeId) -> None:
        facts = answered(lambda: self._client.read_node(node))
        if not self._client.is_in_pool(facts):
            raise Refused(
                f'Node {node} has left this pool (conductor group or shard); '
                f'it cannot be moved within this pool'
            )
        is_free = self._held_nodes.is_free(node)
        if facts.instance_uuid is not None or not is_free:
            raise Refused(
                f'Node {node} is being built on; try again when that has ended'
            )

    def _write(self, row: Any, pin: Pin | None) -> None:
        here = self._held_nodes.host
        try:
            self._compute_nodes.write_pin(row, pin)
        except GateShut as exc:
            raise no_lease() from exc
        except Exception as exc:
            raise Refused(
                f'Nova did not say whether the pin was written; run the '
                f'command again: {exc}'
            ) from exc
        finally:
            self._held_nodes.note_new_pin()
        if row.host != here:
            raise Refused(f'Host {row.host} holds the node now')
