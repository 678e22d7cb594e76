# SPDX-License-Identifier: Apache-2.0
"""The part of Placement's API that a compute daemon needs, typed.

Every write carries the provider's generation and returns the next one.
Errors of keystoneauth1 and HTTP stop here. A read is sent once more if the
connection fails. A write never is: the right to it may be lost meanwhile, so
the caller looks again and decides. API reference:
https://docs.openstack.org/api-ref/placement/
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from keystoneauth1 import exceptions as ksa_exc

from resource_tracker import errors, interning
from resource_tracker.delta import (
    Create,
    Inventories,
    KnownProvider,
    PutAggregates,
    PutInventories,
    PutTraits,
    Write,
)
from resource_tracker.meter import Meter, NoMeter
from resource_tracker.trait_names import TraitNames

# 1.19 aggregates carry the generation, 1.20 POST answers the provider,
# 1.23 errors have codes, 1.39 in: for traits. Placement has 1.39 since Yoga.
MICROVERSION = '1.39'

_READ_RETRIES = 1
_READS_MAX = 3

# Placement's stable error codes (its errors.py), and what they mean to us.
_CODES: Mapping[str, type[errors.PlacementError]] = {
    'placement.inventory.inuse': errors.ProviderInUse,
    'placement.resource_provider.inuse': errors.ProviderInUse,
    'placement.duplicate_name': errors.ProviderExists,
}
_STATUSES: Mapping[int, type[errors.PlacementError]] = {
    401: errors.PlacementUnavailable,  # Keystone may be restarting.
    403: errors.PlacementUnavailable,  # Our role, and no node's fault.
    404: errors.ProviderNotFound,
    406: errors.PlacementUnavailable,  # Older than MICROVERSION.
    408: errors.PlacementUnavailable,
    409: errors.GenerationConflict,
    429: errors.PlacementUnavailable,
    500: errors.PlacementFailed,
}


class Clock(Protocol):
    """What is needed of time."""

    def now_s(self) -> float:
        """Seconds on a scale that never jumps."""


class _NoClock:
    """For whom nobody measures."""

    def now_s(self) -> float:
        """Stand still."""
        return 0.0


def _allow() -> None:
    """Require nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListedProvider:
    """A provider as the list of all shows it."""

    uuid: str
    name: str
    generation: int


class Placement:
    """A client of Placement; any thread may call, all calls block.

    :param adapter: a keystoneauth1 adapter for the service placement
    :param timeout_s: bounds each request where the adapter's session does
        not: a lost packet must not cost a thread for ever
    :param meter: is told of each request, timed by ``clock``
    """

    def __init__(
        self,
        adapter: Any,
        *,
        timeout_s: float = 60.0,
        meter: Meter | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._adapter = adapter
        self._meter = meter or NoMeter()
        self._clock = clock or _NoClock()
        self._timeout_s = adapter.session.timeout or timeout_s
        self._trait_names = TraitNames(self._request)

    # Reading

    def list_providers(self) -> dict[str, ListedProvider]:
        """Return every provider by its uuid: one request."""
        return {found.uuid: found for found in self._list_matching('')}

    def read_provider_uuid(self, node: str) -> str | None:
        """Return the uuid of a node's provider, by its uuid or its name."""
        for query in (f'?uuid={node}', f'?name={node}'):
            for found in self._list_matching(query):
                return found.uuid
        return None

    def read_aggregates(self, uuid: str) -> tuple[frozenset[str], int]:
        """Return the aggregates of a provider, and its generation."""
        answer = self._read_part(uuid, 'aggregates')
        found = interning.names(frozenset(answer['aggregates']))
        return found, _generation(answer)

    def read_provider(self, uuid: str) -> KnownProvider | None:
        """Return a provider as it is now; None if there is none.

        :raises errors.GenerationConflict: it is written all the time
        """
        for _ in range(_READS_MAX):
            try:
                inventories = self._read_part(uuid, 'inventories')
                traits = self._read_part(uuid, 'traits')
            except errors.ProviderNotFound:
                return None
            if _generation(inventories) == _generation(traits):
                # Nobody wrote it between the two reads.
                return KnownProvider(
                    uuid=uuid,
                    generation=_generation(inventories),
                    inventories=interning.record(inventories['inventories']),
                    traits=interning.names(frozenset(traits['traits'])),
                )
        raise errors.GenerationConflict(
            f'provider {uuid} changed at each of {_READS_MAX} reads'
        )

    def read_classes_in_use(self, uuid: str) -> frozenset[str]:
        """Return the classes of which a provider has something allocated."""
        usages = self._read_part(uuid, 'usages')['usages']
        return frozenset(name for name, used in usages.items() if used)

    def read_consumers(self, uuid: str) -> frozenset[str]:
        """Return who has allocations on a provider."""
        return frozenset(self._read_part(uuid, 'allocations')['allocations'])

    def supported_traits(self, traits: Iterable[str]) -> frozenset[str]:
        """Return the traits that this Placement can hold.

        It can hold any CUSTOM_ one. A standard one that it does not know
        would fail the whole write, so it is left out.
        """
        return self._trait_names.supported(frozenset(traits))

    def read_new_traits(self) -> frozenset[str]:
        """Return the traits that it can hold by now, and could not before.

        Each is returned once. No request if it could hold all.
        """
        return self._trait_names.read_newly_supported()

    # Writing

    def write(
        self,
        change: Write,
        generation: int,
        require: Callable[[], None] = _allow,
    ) -> int:
        """Carry out one write of a plan; return the next generation.

        New names are made before it, and that may take long.

        :param require: called just before the write itself is sent; raises
            if it is not to be
        :raises errors.GenerationConflict: somebody else wrote meanwhile
        :raises errors.ProviderExists: there is one of this uuid or name
        :raises errors.ProviderInUse: it would take away what is allocated
        """
        with self._ensured_names(change):
            require()
            return self._write(change, generation)

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider; one that is not there is no error.

        :raises errors.ProviderInUse: something is allocated on it
        """
        try:
            self._request('DELETE', f'/resource_providers/{uuid}')
        except errors.ProviderNotFound:
            return

    def _ensured_names(
        self, change: Write
    ) -> contextlib.AbstractContextManager[None]:
        """See that the names exist that a write uses."""
        match change:
            case PutInventories(inventories=inventories):
                return self._trait_names.ensured(
                    'resource_classes', inventories
                )
            case PutTraits(traits=traits):
                return self._trait_names.ensured('traits', traits)
            case _:
                return contextlib.nullcontext()

    def _write(self, change: Write, generation: int) -> int:
        match change:
            case Create(uuid=uuid):
                return self._create(uuid)
            case PutInventories(uuid=uuid, inventories=inventories):
                return self._put_inventories(uuid, inventories, generation)
            case PutTraits(uuid=uuid, traits=traits):
                body = {'traits': sorted(traits)}
                return self._put(uuid, 'traits', body, generation)
            case PutAggregates(uuid=uuid, aggregates=aggregates):
                body = {'aggregates': sorted(aggregates)}
                return self._put(uuid, 'aggregates', body, generation)

    def _create(self, uuid: str) -> int:
        body = {'uuid': uuid, 'name': uuid}
        answer = self._request('POST', '/resource_providers', body)
        return int(answer['generation'])

    def _put_inventories(
        self, uuid: str, inventories: Inventories, generation: int
    ) -> int:
        body = {'inventories': {k: dict(v) for k, v in inventories.items()}}
        return self._put(uuid, 'inventories', body, generation)

    def _put(
        self, uuid: str, part: str, body: Mapping[str, Any], generation: int
    ) -> int:
        url = f'/resource_providers/{uuid}/{part}'
        fenced = {**body, 'resource_provider_generation': generation}
        return _generation(self._request('PUT', url, fenced))

    # HTTP

    def _list_matching(self, query: str) -> list[ListedProvider]:
        body = self._request('GET', f'/resource_providers{query}')
        return [
            ListedProvider(
                sys.intern(record['uuid']),
                sys.intern(record['name']),
                record['generation'],
            )
            for record in body['resource_providers']
        ]

    def _read_part(self, uuid: str, part: str) -> Any:
        return self._request('GET', f'/resource_providers/{uuid}/{part}')

    def _request(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> Any:
        begun_s, status = self._clock.now_s(), 'none'
        try:
            response = self._send(method, url, body)
            status = str(response.status_code)
        finally:
            seconds = self._clock.now_s() - begun_s
            self._meter.count_request(method, _kind(url), status, seconds)
        if response.status_code >= 400:
            raise _error(method, url, response)
        return _parsed(method, url, response)

    def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None
    ) -> Any:
        arguments: dict[str, Any] = {} if body is None else {'json': body}
        if method == 'GET':
            arguments['connect_retries'] = _READ_RETRIES
        else:
            # Whatever nova.conf says: the gate is not asked before those.
            arguments['connect_retries'] = arguments['status_code_retries'] = 0
        try:
            return self._adapter.request(
                url,
                method,
                microversion=MICROVERSION,
                raise_exc=False,
                timeout=self._timeout_s,
                **arguments,
            )
        except ksa_exc.ClientException as exc:
            raise errors.PlacementUnavailable(
                f'Placement did not answer {method} {url}: {exc}'
            ) from exc


def _kind(url: str) -> str:
    """Return what a request is about: inventories, traits, …"""
    parts = url.partition('?')[0].strip('/').split('/')
    return parts[2] if len(parts) == 3 else parts[0]


def _generation(answer: Mapping[str, Any]) -> int:
    return int(answer['resource_provider_generation'])


class _Answer(dict[str, Any]):
    """A JSON object of Placement's; what is not in it was no answer."""

    def __missing__(self, key: str) -> Any:
        raise errors.PlacementUnavailable(
            f'Placement answered without {key}; is something in between?'
        )


def _parsed(method: str, url: str, response: Any) -> _Answer:
    """Return the body; a proxy's page of HTML is no answer."""
    if not response.content:
        return _Answer()
    try:
        return _Answer(response.json())
    except (ValueError, TypeError) as exc:
        raise errors.PlacementUnavailable(
            f'Placement answered {method} {url} with something else than a '
            f'JSON object'
        ) from exc


def _error(method: str, url: str, response: Any) -> errors.PlacementError:
    status = response.status_code
    code, detail = _details(response)
    default = (
        errors.PlacementUnavailable
        if status >= 500
        else errors.PlacementRefused
    )
    kind = _CODES.get(code) or _STATUSES.get(status, default)
    return kind(f'Placement answered {status} to {method} {url}: {detail}')


def _details(response: Any) -> tuple[str, str]:
    """Return Placement's error code and text, as far as there are any."""
    try:
        first = response.json()['errors'][0]
        return str(first.get('code', '')), str(first.get('detail', '')).strip()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return '', str(response.text)[:200]
