# SPDX-License-Identifier: Apache-2.0
"""Typed client for the part of Placement's API that a compute service uses.

Each write carries the provider's generation and returns the next one. Errors
of keystoneauth1 and HTTP are translated into ``resource_tracker.errors``. A
read is sent once more if the connection fails. A write is sent once only,
because the worker may lose its lease meanwhile; the caller decides about
another try. API reference: https://docs.openstack.org/api-ref/placement/
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs
from keystoneauth1 import exceptions as ksa_exc

from resource_tracker import delta, errors, interning, rights
from resource_tracker.meter import Meter, NoMeter
from resource_tracker.trait_names import TraitNames

# 1.19: aggregates have a generation; 1.20: POST returns the provider;
# 1.23: errors have codes; 1.39: ``in:`` in a query for traits. Placement has
# 1.39 since Yoga.
MICROVERSION = '1.39'

_READ_RETRIES = 1
ONCE = {'connect_retries': 0, 'status_code_retries': 0}
# Of all that needs a valid token, Placement answers this without a query.
_CHEAPEST = '/resource_classes/VCPU'
_READS_MAX = 3

# Placement's stable error codes (placement/errors.py) -> the errors of this
# package.
_CODES: Mapping[str, type[errors.PlacementError]] = {
    'placement.inventory.inuse': errors.ProviderInUse,
    'placement.resource_provider.inuse': errors.ProviderInUse,
    'placement.duplicate_name': errors.ProviderExists,
}
_STATUSES: Mapping[int, type[errors.PlacementError]] = {
    401: errors.PlacementUnavailable,  # A restart of Keystone causes it.
    403: errors.PlacementForbidden,
    404: errors.ProviderNotFound,
    406: errors.PlacementUnavailable,  # Too old for MICROVERSION.
    408: errors.PlacementUnavailable,
    409: errors.GenerationConflict,
    413: errors.PlacementFailed,  # A proxy found this request too long.
    429: errors.PlacementUnavailable,
    500: errors.PlacementFailed,
}
_CURES: Mapping[int, str] = {
    401: '; check what is below [placement] auth_type in nova.conf',
    403: f'; the user below [placement] in nova.conf lacks this right'
    f'{rights.CURE}',
}


class Clock(Protocol):
    """The clock that measures the requests."""

    def now_s(self) -> float:
        """Return seconds on a scale that never jumps."""


class _NoClock:
    """A clock that stands still, for a client without a meter."""

    def now_s(self) -> float:
        """Return 0."""
        return 0.0


def _same(adapter: Any) -> Any:
    """Return the adapter itself."""
    return adapter


def _allow() -> None:
    """Do nothing, so that the write is sent."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListedProvider:
    """One entry of Placement's list of all providers."""

    uuid: str
    name: str
    generation: int


@attrs.define(eq=False, repr=False, slots=False)
class Placement:
    """Client of Placement; any thread may call, and each call blocks.

    Each method raises ``errors.PlacementError`` or a subclass of it.

    :param adapter: a keystoneauth1 adapter for the service type placement
    :param timeout_s: limit for one request, in seconds, unless the adapter's
        session has a shorter one; without, a lost packet blocks for ever
    :param meter: counts each request, timed with ``clock``
    :param reconnect: returns an adapter like the given one, with its token and
        without its open connections
    """

    _adapter: Any
    _timeout_s: float = 60.0
    _meter: Meter = attrs.field(factory=NoMeter)
    _clock: Clock = attrs.field(factory=_NoClock)
    _reconnect: Callable[[Any], Any] = _same

    def __attrs_post_init__(self) -> None:
        limit_s = self._adapter.session.timeout or self._timeout_s
        self._timeout_s = min(limit_s, self._timeout_s)
        self._trait_names = TraitNames(self._request)

    # Reading

    def check_access(self, timeout_s: float) -> None:
        """Check that Placement answers and accepts the token; one request.

        It is sent over a new connection, and only once: a network may leave
        open connections alone and break most new ones.

        :param timeout_s: limit for the request; fetching a token may take
            longer
        """
        adapter = self._reconnect(self._adapter)
        options = {**ONCE, 'timeout': timeout_s}
        self._exchange(adapter, 'GET', _CHEAPEST, options)

    def read_date(self) -> str | None:
        """Return the header ``Date`` of an answer; None if it has none."""
        answer = _send(self._adapter, 'GET', '/', {'timeout': self._timeout_s})
        date = answer.headers.get('Date')
        return None if date is None else str(date)

    def list_providers(self) -> dict[str, ListedProvider]:
        """Return all providers by uuid; one request."""
        return {found.uuid: found for found in self._list_matching('')}

    def list_offering(self, resource_class: str) -> frozenset[str]:
        """Return the uuids of the providers with a free unit of a class.

        A reserved unit is not free. None has a class that does not exist.
        """
        return self._list_uuids(f'?resources={resource_class}:1')

    def list_with_trait(self, trait: str) -> frozenset[str]:
        """Return the uuids of the providers with a trait.

        None has a trait that does not exist.
        """
        return self._list_uuids(f'?required={trait}')

    def _list_uuids(self, query: str) -> frozenset[str]:
        try:
            return frozenset(p.uuid for p in self._list_matching(query))
        except errors.PlacementRefused:
            return frozenset()  # The class or trait does not exist.

    def read_provider_uuid(self, node: str) -> str | None:
        """Return the uuid of a node's provider; None if there is none.

        :param node: the node's uuid, which is the uuid or the name of its
            provider
        """
        for query in (f'?uuid={node}', f'?name={node}'):
            for found in self._list_matching(query):
                return found.uuid
        return None

    def read_aggregates(self, uuid: str) -> tuple[frozenset[str], int]:
        """Return a provider's aggregates and its generation."""
        answer = self._read_part(uuid, 'aggregates')
        found = interning.names(frozenset(answer['aggregates']))
        return found, _generation(answer)

    def read_provider(self, uuid: str) -> delta.KnownProvider | None:
        """Return a provider with inventories and traits, or None.

        :raises errors.GenerationConflict: another client wrote the provider
            during each of the reads
        """
        for _ in range(_READS_MAX):
            try:
                inventories = self._read_part(uuid, 'inventories')
                traits = self._read_part(uuid, 'traits')
            except errors.ProviderNotFound:
                return None
            if _generation(inventories) == _generation(traits):
                # No client wrote the provider between the two reads.
                return delta.KnownProvider(
                    uuid=uuid,
                    generation=_generation(inventories),
                    inventories=interning.record(inventories['inventories']),
                    traits=interning.names(frozenset(traits['traits'])),
                )
        raise errors.GenerationConflict(
            f'provider {uuid} changed at each of {_READS_MAX} reads'
        )

    def read_classes_in_use(self, uuid: str) -> frozenset[str]:
        """Return the resource classes of which something is allocated."""
        usages, _ = self.read_usages(uuid)
        return frozenset(name for name, used in usages.items() if used)

    def read_usages(self, uuid: str) -> tuple[dict[str, int], int]:
        """Return how much is allocated of a provider, and its generation.

        Each class of its inventory has an entry, which may be 0.
        """
        answer = self._read_part(uuid, 'usages')
        return dict(answer['usages']), _generation(answer)

    def read_consumers(self, uuid: str) -> frozenset[str]:
        """Return the uuids of the consumers with allocations on a provider."""
        return self.read_provider_allocations(uuid)[0]

    def read_provider_allocations(
        self, uuid: str
    ) -> tuple[frozenset[str], int]:
        """Return the consumers of a provider, and its generation."""
        answer = self._read_part(uuid, 'allocations')
        return frozenset(answer['allocations']), _generation(answer)

    def supported_traits(self, traits: Iterable[str]) -> frozenset[str]:
        """Return those of the traits that this Placement accepts.

        It accepts each CUSTOM_ trait. A standard trait that an older Placement
        does not know would make it refuse the whole write.
        """
        return self._trait_names.supported(frozenset(traits))

    def read_new_traits(self) -> frozenset[str]:
        """Return the traits that Placement supports only since its upgrade.

        These are standard traits that ``supported_traits`` left out before.
        Each is returned once. Sends no request if none was left out.
        """
        return self._trait_names.read_newly_supported()

    def missing_rights(self) -> list[rights.Trial]:
        """Return the rights that the user lacks; changes nothing."""
        return [each for each in rights.trials() if self._is_denied(each)]

    def _is_denied(self, trial: rights.Trial) -> bool:
        try:
            self._request(trial.method, trial.url, trial.body)
        except errors.PlacementForbidden:
            return True
        except errors.PlacementUnavailable:
            raise
        except errors.PlacementError:
            return False  # Most of them are wrong.
        return False

    # Writing

    def write(
        self,
        change: delta.Write,
        generation: int,
        require: Callable[[], None] = _allow,
    ) -> int:
        """Send one write of a plan; return the provider's next generation.

        First creates custom traits and classes that do not exist yet, which
        can take a minute.

        :param require: called directly before the write is sent; raises if the
            write is not allowed any more
        :raises errors.GenerationConflict: another client wrote the provider
        :raises errors.ProviderExists: the uuid or name exists already
        :raises errors.ProviderInUse: the write would remove an allocated class
        """
        with self._ensured_names(change):
            require()
            return self._write(change, generation)

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider; no error if it does not exist.

        :raises errors.ProviderInUse: something is allocated on it
        """
        try:
            self._request('DELETE', f'/resource_providers/{uuid}')
        except errors.ProviderNotFound:
            return

    def _ensured_names(
        self, change: delta.Write
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the custom names of a write exist."""
        match change:
            case delta.PutInventories(inventories=inventories):
                return self._trait_names.ensured(
                    'resource_classes', inventories
                )
            case delta.PutTraits(traits=traits):
                return self._trait_names.ensured('traits', traits)
            case _:
                return contextlib.nullcontext()

    def _write(self, change: delta.Write, generation: int) -> int:
        match change:
            case delta.Create(uuid=uuid):
                return self._create(uuid)
            case delta.PutInventories(uuid=uuid, inventories=inventories):
                plain = {name: dict(inventories[name]) for name in inventories}
                return self._put(uuid, 'inventories', plain, generation)
            case delta.PutTraits(uuid=uuid, traits=traits):
                return self._put(uuid, 'traits', sorted(traits), generation)
            case delta.PutAggregates(uuid=uuid, aggregates=aggregates):
                found = sorted(aggregates)
                return self._put(uuid, 'aggregates', found, generation)

    def _create(self, uuid: str) -> int:
        body = {'uuid': uuid, 'name': uuid}
        answer = self._request('POST', '/resource_providers', body)
        return int(answer['generation'])

    def _put(self, uuid: str, part: str, value: Any, generation: int) -> int:
        url = f'/resource_providers/{uuid}/{part}'
        fenced = {part: value, 'resource_provider_generation': generation}
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
        options: dict[str, Any] = {'timeout': self._timeout_s}
        if body is not None:
            options['json'] = body
        if method == 'GET':
            options['connect_retries'] = _READ_RETRIES
        else:
            # Without this, retries that nova.conf sets would be sent without a
            # check of the lease gate.
            options |= ONCE
        return self._exchange(self._adapter, method, url, options)

    def _exchange(
        self, adapter: Any, method: str, url: str, options: Mapping[str, Any]
    ) -> Any:
        """Send a request, count it, and return the body of its answer."""
        begun_s, status = self._clock.now_s(), 'none'
        try:
            with self._meter.waiting():
                response = _send(adapter, method, url, options)
            status = str(response.status_code)
        finally:
            seconds = self._clock.now_s() - begun_s
            self._meter.count_request(method, _kind(url), status, seconds)
        if response.status_code >= 400:
            raise _error(method, url, response)
        return _parsed(method, url, response)


def _send(
    adapter: Any, method: str, url: str, options: Mapping[str, Any]
) -> Any:
    try:
        return adapter.request(
            url, method, microversion=MICROVERSION, raise_exc=False, **options
        )
    except ksa_exc.ClientException as exc:
        raise errors.PlacementUnavailable(
            f'Placement did not answer {method} {url}: {exc}{_cure(exc)}'
        ) from exc
    except Exception as exc:
        if type(exc) is not Exception:
            raise
        # keystoneauth1 raises a bare one for a password that is not set.
        raise errors.PlacementUnavailable(
            f'No token for Placement{_CURES[401]}: {exc}'
        ) from exc


def _cure(exc: ksa_exc.ClientException) -> str:
    """Return what an operator can correct if a request was not answered."""
    match exc:
        case ksa_exc.Unauthorized():
            return _CURES[401]
        case ksa_exc.EndpointNotFound():
            return (
                '; check [placement] region_name, service_type and '
                'valid_interfaces in nova.conf'
            )
        case _ if 'CERTIFICATE_VERIFY_FAILED' in str(exc):
            return (
                '; renew the certificate of this service, or correct '
                '[placement] cafile in nova.conf'
            )
        case _:
            return ''


def _kind(url: str) -> str:
    """Return the kind of resource in a URL: inventories, traits, …"""
    parts = url.partition('?')[0].strip('/').split('/')
    return parts[2] if len(parts) == 3 else parts[0]


def _generation(answer: Mapping[str, Any]) -> int:
    return int(answer['resource_provider_generation'])


class _Answer(dict[str, Any]):
    """A JSON object of Placement; a missing key is an error."""

    def __missing__(self, key: str) -> Any:
        raise errors.PlacementUnavailable(
            f'Placement answered without {key}; is something in between?'
        )


def _parsed(method: str, url: str, response: Any) -> _Answer:
    """Return the body of an answer as a JSON object.

    :raises errors.PlacementUnavailable: the body is something else, such as
        the HTML page of a proxy
    """
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
    is_failure = issubclass(kind, errors.PlacementFailed)
    if not is_failure and not _is_of_placement(response):
        # A proxy has answered, so the answer shows nothing about a provider.
        kind = errors.PlacementUnavailable
    text = f'Placement answered {status} to {method} {url}: {detail}'
    text += _CURES.get(status, '')
    if issubclass(kind, errors.PlacementUnavailable):
        return kind(text, _retry_after_s(response))
    return kind(text)


def _retry_after_s(response: Any) -> float:
    """Return the seconds in ``Retry-After``; 0 if there are none.

    A date, the other form of this header, is not used.
    """
    asked = str(response.headers.get('Retry-After', ''))
    return float(asked) if asked.isdecimal() else 0.0


def _is_of_placement(response: Any) -> bool:
    """Return whether the body is like that of each error of Placement.

    Some proxies have JSON of their own.
    """
    try:
        body = response.json()
    except ValueError:
        return False
    return isinstance(body, dict) and 'errors' in body


def _details(response: Any) -> tuple[str, str]:
    """Return the error code and text of an answer, or empty strings."""
    try:
        first = response.json()['errors'][0]
        return str(first.get('code', '')), str(first.get('detail', '')).strip()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return '', str(response.text)[:200]
