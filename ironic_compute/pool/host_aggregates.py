# SPDX-License-Identifier: Apache-2.0
"""Nova's host aggregates, read to set the Placement aggregates of providers.

Nova's API puts only the first node of a host into the Placement aggregate of
the same uuid; a request for an availability zone would miss the host's other
nodes. Therefore all providers of the host are put into it. Placement
aggregates that are no host aggregates of Nova stay as they are.
"""

from collections.abc import Iterable
from typing import Any

from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from hashring.ring import Host
from resource_tracker.provider import Aggregates

LOG = logging.getLogger(__name__)


class HostAggregates:
    """Nova's host aggregates as last read; only one thread may call."""

    def __init__(self) -> None:
        self._context = nova_context.get_admin_context()
        self._managed: frozenset[str] = frozenset()
        self._newest: Aggregates | None = None
        self._has_logged = False
        self._uneven: frozenset[str] = frozenset()

    def read_for(self, host: Host, pool: Iterable[Host]) -> Aggregates | None:
        """Read all host aggregates in one RPC; return those of ``host``.

        :param pool: the hosts of the pool, which should be in the same
            aggregates; a warning names the aggregates that lack some
        :returns: the result of the last read if Nova does not answer now;
            None if no read has succeeded, or if Nova has no aggregate
        """
        try:
            found = list(objects.AggregateList.get_all(self._context))
        except Exception as exc:
            # The conductor has no API database, or does not answer. Every
            # exception is caught, because an error loses its class on the
            # message bus.
            self._log_once(exc)
            return self._newest
        self._log_uneven(found, frozenset(pool))
        # An aggregate is never removed from this set: when Nova deletes it,
        # the providers must still be removed from it.
        self._managed |= {aggregate.uuid for aggregate in found}
        if self._managed:
            member = {each.uuid for each in found if host in each.hosts}
            self._newest = Aggregates(frozenset(member), self._managed)
        return self._newest

    def _log_uneven(
        self, aggregates: Iterable[Any], pool: frozenset[Host]
    ) -> None:
        """Log once each aggregate that has some hosts of the pool, not all.

        A free node may move to any host of the pool, and would change its
        availability zone with it.
        """
        within = {a.name: pool.intersection(a.hosts) for a in aggregates}
        uneven = {name for name, has in within.items() if has and has != pool}
        for name in sorted(uneven - self._uneven):
            LOG.warning(
                'Aggregate %(name)s has %(has)s of this pool and not '
                '%(lacks)s: a node that changes its host leaves or joins it; '
                'add or remove all hosts of the pool',
                {
                    'name': name,
                    'has': ', '.join(sorted(within[name])),
                    'lacks': ', '.join(sorted(pool - within[name])),
                },
            )
        self._uneven = frozenset(uneven)

    def _log_once(self, exc: Exception) -> None:
        if not self._has_logged:
            LOG.info(
                'Could not read the host aggregates of Nova, and leaves the '
                'aggregates of providers as they are: %(error)s',
                {'error': exc},
            )
        self._has_logged = True
