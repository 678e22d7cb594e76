# SPDX-License-Identifier: Apache-2.0
"""The cells of the ``paths`` scenario: which service is cut how from whom.

Imports no package, because the parser of the command line uses the names.
"""

import argparse
import dataclasses
import enum
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from onemachine.chaos.tcp_proxy import Way
from onemachine.progress import CloudError

# Seconds. Nova shows a host as down 60 s after its last heartbeat, which is
# up to 10 s old when the path is cut. If all hosts are down, nova-scheduler
# itself fails each build, so a cut from all hosts ends before.
ALL_CUT_MAX_S = 45.0
# Seconds: a flapping path is cut for a while, works for a while, and so on.
FLAP_CUT_S, FLAP_WORKS_S = 10.0, 15.0
FLAPPING_S = 600.0


class Service(enum.StrEnum):
    """A service that is cut from hosts."""

    RABBIT = 'rabbit'
    CONDUCTOR = 'conductor'
    IRONIC = 'ironic'
    PLACEMENT = 'placement'
    KEYSTONE = 'keystone'
    NEUTRON = 'neutron'
    COORDINATION = 'coordination'


class Part(enum.StrEnum):
    """A part of the scenario: whom services are cut from."""

    ONE = 'one'
    ALL = 'all'
    FLAPPING = 'flapping'


# Ways to cut a path; the proxies know one more, which is not to cut it.
WAYS = tuple(way for way in Way if way is not Way.PASS)
PLAIN_WAYS = tuple(way for way in WAYS if way is not Way.EXPIRED)


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The user's choice of cells.

    :param cut_s: seconds of a cut from one host
    :param tls: whether hosts reach the services by TLS
    """

    services: Sequence[Service] = tuple(Service)
    ways: Sequence[Way] = PLAIN_WAYS
    parts: Sequence[Part] = tuple(Part)
    cut_s: float = 100.0
    rounds: int = 1
    tls: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One service, cut from some hosts for a while."""

    part: Part
    service: Service
    way: Way
    hosts: tuple[str, ...]
    cut_s: float

    def __str__(self) -> str:
        way = 'frozen' if self.service is Service.CONDUCTOR else self.way
        where = {
            Part.ONE: ' '.join(self.hosts),
            Part.ALL: 'all',
            Part.FLAPPING: f'{" ".join(self.hosts)} flapping',
        }[self.part]
        return f'{self.service} {way} {where}'


def choose_cells(
    wanted: Wanted,
    hosts: Sequence[str],
    rng: random.Random,
    *,
    stock: bool = False,
) -> list[Cell]:
    """Return the cells in their order; chance chooses the hosts.

    :param stock: stock nova-compute has no coordination backend
    """
    services = [
        service
        for service in wanted.services
        if not (stock and service is Service.COORDINATION)
    ]
    choose = {
        Part.ONE: _cut_from_one,
        Part.ALL: _cut_from_all,
        Part.FLAPPING: _flapping,
    }
    return [
        cell
        for _ in range(wanted.rounds)
        for part in Part
        if part in wanted.parts
        for cell in choose[part](wanted, services, hosts, rng)
    ]


def _of_one(services: Sequence[Service]) -> list[Service]:
    """Return the services that can be cut from one host.

    Hosts reach nova-conductor through RabbitMQ.
    """
    return [s for s in services if s is not Service.CONDUCTOR]


def _cut_from_one(
    wanted: Wanted,
    services: Sequence[Service],
    hosts: Sequence[str],
    rng: random.Random,
) -> list[Cell]:
    return [
        Cell(Part.ONE, service, way, (rng.choice(hosts),), wanted.cut_s)
        for service in _of_one(services)
        for way in wanted.ways
    ]


def _cut_from_all(
    wanted: Wanted,
    services: Sequence[Service],
    hosts: Sequence[str],
    rng: random.Random,
) -> list[Cell]:
    cut_s = min(wanted.cut_s, ALL_CUT_MAX_S)
    return [
        Cell(Part.ALL, service, rng.choice(wanted.ways), tuple(hosts), cut_s)
        for service in services
    ]


def _flapping(
    wanted: Wanted,
    services: Sequence[Service],
    hosts: Sequence[str],
    rng: random.Random,
) -> list[Cell]:
    """Return a cell with a vital service, if one is wanted."""
    possible = _of_one(services)
    if not possible:
        return []
    vital = [s for s in possible if s in (Service.RABBIT, Service.IRONIC)]
    service, way = rng.choice(vital or possible), rng.choice(wanted.ways)
    host = rng.choice(hosts)
    return [Cell(Part.FLAPPING, service, way, (host,), FLAPPING_S)]


def choose_ways(given: Sequence[Way] | None, *, tls: bool) -> Sequence[Way]:
    """Return the given ways, or all that are possible.

    :raises CloudError: a certificate must expire, and there is none
    """
    if given is None:
        return WAYS if tls else PLAIN_WAYS
    if Way.EXPIRED in given and not tls:
        raise CloudError(
            'no certificate can expire where daemons use no TLS: add --tls, '
            f'or leave {Way.EXPIRED} out of --ways'
        )
    return given


T = TypeVar('T', bound=enum.StrEnum)


def names_of(known: Sequence[T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of names with commas between, for the command line."""

    def parse(text: str) -> tuple[T, ...]:
        given = [word.strip() for word in text.split(',')]
        by_name = {one.value: one for one in known}
        if unknown := [word for word in given if word not in by_name]:
            raise argparse.ArgumentTypeError(
                f'there is no {", ".join(map(repr, unknown))}; there are: '
                f'{",".join(by_name)}'
            )
        return tuple(by_name[word] for word in dict.fromkeys(given))

    return parse
