# SPDX-License-Identifier: Apache-2.0
"""Nova's host aggregates, read to set the Placement aggregates of providers.

Nova's API puts only the first node of a host into the Placement aggregate of
the same uuid; a request for an availability zone would miss the host's other
nodes. Therefore all providers of the host are put into it. Placement
aggregates that are no host aggregates of Nova stay as they are.
"""

from collections.abc import Iterable
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from hashring.ring import Host
from resource_tracker.provider import Aggregates

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_ZONE = 'availability_zone'


def find_difference(one: Host, other: Host) -> str | None:
    """Return what users could see of a move between two hosts; one RPC.

    That is another availability zone. Other aggregates decide which servers
    the scheduler accepts there, so a rebuild might be refused after a move.

    :returns: completes a sentence that begins with both hosts; None if they
        are in the same aggregates
    :raises Exception: Nova does not answer, or its conductor has no API
        database; an error loses its class on the message bus
    """
    found = list(
        objects.AggregateList.get_all(nova_context.get_admin_context())
    )
    zones = [_zone_of(host, found) for host in (one, other)]
    if zones[0] != zones[1]:
        return (
            f'are in different availability zones, {zones[0]} and {zones[1]}'
        )
    uneven = sorted(
        each.name
        for each in found
        if (one in each.hosts) != (other in each.hosts)
    )
    if uneven:
        return f'are not in the same aggregates: {", ".join(uneven)}'
    return None


def read_zone(host: Host) -> str:
    """Return the availability zone of a host, as nova-api shows it; one RPC.

    It raises what :func:`find_difference` does.
    """
    context = nova_context.get_admin_context()
    return _zone_of(host, objects.AggregateList.get_all(context))


def _zone_of(host: Host, aggregates: Iterable[Any]) -> str:
    """Return the availability zone of a host, as nova-api shows it."""
    zones = {
        each.metadata[_ZONE]
        for each in aggregates
        if host in each.hosts and each.metadata.get(_ZONE)
    }
    return ','.join(sorted(zones)) or str(CONF.default_availability_zone)


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
