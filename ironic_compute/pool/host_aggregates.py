# SPDX-License-Identifier: Apache-2.0
"""Which of Nova's host aggregates a host is in, for all of its nodes.

Nova's own API puts only the first node of a host into the Placement aggregate
of the same uuid, so a request for an availability zone would miss the others.
Other services' aggregates are none of ours and are left alone.
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
    """Nova's aggregates as last read; one thread uses it."""

    def __init__(self) -> None:
        self._context = nova_context.get_admin_context()
        self._managed: frozenset[str] = frozenset()
        self._newest: Aggregates | None = None
        self._has_told = False
        self._uneven: frozenset[str] = frozenset()

    def read_for(self, host: Host, pool: Iterable[Host]) -> Aggregates | None:
        """Read all aggregates, one RPC, and return what is the host's.

        :param pool: the hosts of the pool, which should all be in the same
        :returns: what was read last if it cannot be read now; None if it
            never could, or if there is no aggregate at all
        """
        try:
            found = list(objects.AggregateList.get_all(self._context))
        except Exception as exc:
            # Its class does not cross the wire: a conductor without the API
            # database, or none that answers.
            self._tell_once(exc)
            return self._newest
        self._tell_uneven(found, frozenset(pool))
        # One that was deleted is still to be left.
        self._managed |= {aggregate.uuid for aggregate in found}
        if self._managed:
            member = {each.uuid for each in found if host in each.hosts}
            self._newest = Aggregates(frozenset(member), self._managed)
        return self._newest

    def _tell_uneven(
        self, aggregates: Iterable[Any], pool: frozenset[Host]
    ) -> None:
        """Tell of aggregates that have some hosts of the pool and not all.

        A free node goes to whichever host the ring says, and would take its
        users to another availability zone.
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

    def _tell_once(self, exc: Exception) -> None:
        if not self._has_told:
            LOG.info(
                'Could not read the host aggregates of Nova, and leaves the '
                'aggregates of providers as they are: %(error)s',
                {'error': exc},
            )
        self._has_told = True
