# SPDX-License-Identifier: Apache-2.0
"""Log messages about reports to Placement: each problem once, and its end.

The reconciler calls it. A failed report of a node is logged once, and the
first success after it too. An outage of Placement is one message for all
nodes.
"""

import threading

from oslo_log import log as logging

from resource_tracker import errors
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import (
    Situation,
    WantedProvider,
    overlong_capabilities,
)
from resource_tracker.work_queue import Entry

LOG = logging.getLogger(__name__)

# Ironic's provision states of a node that is not in use yet. Its resource
# class may still follow, for instance from an inspection.
_NOT_IN_USE = frozenset(
    {
        'enroll',
        'verifying',
        'manageable',
        'inspecting',
        'inspect wait',
        'inspect failed',
        'adopting',
        'adopt failed',
    }
)


class ReportLog:
    """Logs each problem once; any thread may call, no call blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._classless: set[NodeId] = set()
        self._overlong: dict[NodeId, tuple[str, ...]] = {}
        self._unanswered: set[NodeId] = set()
        # Whether log_success has returned the nodes of this outage already.
        self._are_retried = False

    def log_missing_class(self, facts: NodeFacts) -> None:
        """Log once that a submitted node has no resource class.

        A node that is still enrolled or inspected is left out: the warning
        would be wrong, and it would not come again when the class is missed.
        """
        node = facts.uuid
        with self._lock:
            known = node in self._classless
            if facts.resource_class:
                self._classless.discard(node)
                return
            if facts.provision_state in _NOT_IN_USE:
                return
            self._classless.add(node)
        if not known:
            LOG.warning(
                'Node %(node)s has no resource_class in Ironic, so no flavor '
                'can ask for it; set the field resource_class of the node',
                {'node': node},
            )

    def log_overlong_capabilities(
        self, facts: NodeFacts, situation: Situation
    ) -> None:
        """Log once which capabilities of a submitted node become no traits."""
        node, keys = facts.uuid, overlong_capabilities(facts, situation)
        with self._lock:
            is_new = keys != self._overlong.pop(node, ())
            if keys:
                self._overlong[node] = keys
        if keys and is_new:
            LOG.warning(
                'Left out %(keys)s of node %(node)s from its traits, because '
                'Placement takes no name of more than 255 characters',
                {'keys': ', '.join(keys), 'node': node},
            )

    def forget_node(self, node: NodeId) -> None:
        """Forget a node that the host does not hold any more."""
        with self._lock:
            self._classless.discard(node)
            self._overlong.pop(node, None)
            self._unanswered.discard(node)

    def log_failure(self, entry: Entry, exc: Exception) -> None:
        """Log that a node could not be reported."""
        if isinstance(exc, errors.PlacementUnavailable):
            self._log_unanswered(entry.node, exc)
            return
        with self._lock:
            self._unanswered.discard(entry.node)
        if not isinstance(exc, errors.TrackerError):
            LOG.error(
                'Could not report node %(node)s, and this should not happen',
                {'node': entry.node},
                exc_info=exc,
            )
            return
        level = logging.DEBUG if entry.failures_count else logging.WARNING
        LOG.log(
            level,
            'Could not report node %(node)s: %(reason)s',
            {'node': entry.node, 'reason': exc},
        )

    def mark_answered(self, entry: Entry) -> bool:
        """Record that Placement answered a request for a node.

        Logs the end of an outage when Placement has answered for all nodes.

        :returns: whether the last report of the node had no answer
        """
        with self._lock:
            was_unanswered = entry.node in self._unanswered
            self._unanswered.discard(entry.node)
            is_last = was_unanswered and not self._unanswered
        if is_last:
            LOG.info('Placement answers again, and no node waits for it')
        return was_unanswered

    def log_success(self, entry: Entry) -> frozenset[NodeId]:
        """Log that a failed node was reported; return nodes to retry at once.

        The first success after an outage of Placement returns all other nodes
        that had no answer; any other success returns none.
        """
        was_unanswered = self.mark_answered(entry)
        if entry.failures_count and not was_unanswered:
            LOG.info('Reported node %(node)s again', {'node': entry.node})
        with self._lock:
            is_first = was_unanswered and not self._are_retried
            self._are_retried |= was_unanswered
            return frozenset(self._unanswered) if is_first else frozenset()

    def log_kept_classes(
        self, entry: Entry, wanted: WantedProvider, kept: frozenset[str]
    ) -> None:
        """Log that a node's old resource class stays while it is allocated.

        :param kept: the old classes
        """
        if kept == entry.kept:
            return
        offered = wanted.inventory
        LOG.warning(
            'Kept %(kept)s of node %(node)s while it is allocated; %(class)s '
            'follows when it is free',
            {
                'node': entry.node,
                'kept': ', '.join(sorted(kept)),
                'class': offered.resource_class if offered else 'nothing',
            },
        )

    def log_kept_provider(self, node: NodeId, exc: Exception) -> None:
        """Log that a deleted node's provider stays, because it is in use."""
        LOG.warning(
            'Kept the provider of the deleted node %(node)s: %(reason)s',
            {'node': node, 'reason': exc},
        )

    def _log_unanswered(self, node: NodeId, exc: Exception) -> None:
        with self._lock:
            is_first = not self._unanswered
            self._unanswered.add(node)
            self._are_retried = False
        level = logging.WARNING if is_first else logging.DEBUG
        LOG.log(
            level,
            'Could not report node %(node)s and will report all when '
            'Placement is back: %(reason)s',
            {'node': node, 'reason': exc},
        )
