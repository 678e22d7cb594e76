# SPDX-License-Identifier: Apache-2.0
"""Checks of hosts: served, known to Nova, mapped, up, in one zone."""

from collections.abc import Iterator

from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.snapshot import Snapshot


def check_hosts(snapshot: Snapshot) -> Iterator[Finding]:
    """Check each host of the pool by itself."""
    for host in sorted(snapshot.pool.known):
        subject = Subject(host=host)
        for check, text in _of_host(host, snapshot):
            yield Finding(check, subject, text)


def _of_host(
    host: Host, snapshot: Snapshot
) -> Iterator[tuple[catalogue.Check, str]]:
    service = snapshot.services.get(host)
    is_served = host in snapshot.pool.served
    if not is_served:
        yield catalogue.HOST_NOT_SERVED, f'No daemon serves host {host}'
    if service is None:
        yield (
            catalogue.HOST_WITHOUT_SERVICE,
            f'Nova has no Service record of host {host}',
        )
        return
    if snapshot.mapped is not None and host not in snapshot.mapped:
        yield (
            catalogue.HOST_NOT_MAPPED,
            f'Nova has mapped host {host} to no cell',
        )
    if service.is_forced_down:
        yield (
            catalogue.HOST_FORCED_DOWN,
            f'Host {host} was declared to be down',
        )
    elif is_served and not service.is_up:
        yield (
            catalogue.HOST_DOWN,
            f'Nova counts host {host} as down, and a daemon serves it',
        )


def check_rings(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that all daemons have the same ring."""
    rings = snapshot.pool.rings
    if len(set(rings.values())) > 1:
        each = ', '.join(f'{home} {rings[home]}' for home in sorted(rings))
        yield Finding(
            catalogue.RINGS_DIFFER,
            Subject(),
            f'The daemons have different rings: {each}',
        )


def check_aggregates(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that all hosts of the pool are in the same aggregates."""
    hosts = snapshot.pool.known & snapshot.services.keys()
    for aggregate in snapshot.aggregates or ():
        missing = hosts - aggregate.hosts
        if missing and missing != hosts:
            yield Finding(
                catalogue.UNEVEN_AGGREGATE,
                Subject(other=aggregate.name),
                f'Aggregate {aggregate.name} has '
                f'{_names(hosts & aggregate.hosts)} of this pool and not '
                f'{_names(missing)}',
            )


def check_zones(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that all hosts of the pool are in one availability zone."""
    if snapshot.aggregates is None:
        return
    hosts = sorted(snapshot.pool.known & snapshot.services.keys())
    zones = {host: _zone_of(host, snapshot) for host in hosts}
    for host in hosts[1:]:
        if zones[host] != zones[hosts[0]]:
            yield Finding(
                catalogue.HOST_OF_OTHER_ZONE,
                Subject(host=host),
                f'Host {host} is in availability zone {zones[host]}, and host '
                f'{hosts[0]} of the same pool in {zones[hosts[0]]}',
            )


def _zone_of(host: Host, snapshot: Snapshot) -> str:
    zones = {
        each.zone
        for each in snapshot.aggregates or ()
        if each.zone and host in each.hosts
    }
    return ','.join(sorted(zones)) or snapshot.default_zone


def _names(hosts: frozenset[Host]) -> str:
    return ', '.join(sorted(hosts))
