# SPDX-License-Identifier: Apache-2.0
"""The part of Placement's API that a compute daemon needs, typed.

Every write carries the provider's generation and returns the next one.
Errors of keystoneauth1 and HTTP stop here. Custom traits and resource classes
are created before their first use, once a process; standard traits that this
Placement does not know are left out, since one of them would fail the whole
write. API reference: https://docs.openstack.org/api-ref/placement/
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import os_resource_classes
import os_traits
from keystoneauth1 import exceptions as ksa_exc

from resource_tracker import errors
from resource_tracker.delta import (
    Create,
    Inventories,
    KnownProvider,
    PutAggregates,
    PutInventories,
    PutTraits,
    Write,
)

# 1.19 aggregates carry the generation, 1.20 POST answers the provider,
# 1.23 errors have codes, 1.39 in: for traits. Placement has 1.39 since Yoga.
MICROVERSION = '1.39'

_IN_USE = frozenset(
    {
        'placement.inventory.inuse',
        'placement.resource_provider.inuse',
    }
)


class Placement:
    """A client of Placement; any thread may call.

    :param adapter: a keystoneauth1 adapter for the service placement
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._names = threading.Lock()
        self._custom: set[str] = set()
        self._standard: dict[str, bool] = {}

    # Reading

    def providers(self) -> dict[str, int]:
        """Return the generation of every provider: one request."""
        body = self._get('/resource_providers')
        return {
            record['uuid']: record['generation']
            for record in body['resource_providers']
        }

    def provider(self, uuid: str) -> KnownProvider | None:
        """Return a provider as it is now; None if there is none."""
        url = f'/resource_providers/{uuid}'
        try:
            while True:
                held = self._get(f'{url}/inventories')
                tagged = self._get(f'{url}/traits')
                generation = held['resource_provider_generation']
                if generation == tagged['resource_provider_generation']:
                    break  # Nobody wrote it between the two reads.
        except errors.ProviderNotFound:
            return None
        return KnownProvider(
            uuid=uuid,
            name=uuid,
            generation=generation,
            inventories=held['inventories'],
            traits=frozenset(tagged['traits']),
        )

    def consumers(self, uuid: str) -> frozenset[str]:
        """Return who has allocations on a provider."""
        body = self._get(f'/resource_providers/{uuid}/allocations')
        return frozenset(body['allocations'])

    # Writing

    def write(self, change: Write, generation: int) -> int:
        """Carry out one write of a plan; return the next generation.

        :raises errors.GenerationConflict: somebody else wrote meanwhile
        :raises errors.ProviderInUse: it would take away what is allocated
        """
        match change:
            case Create(uuid=uuid):
                return self._create(uuid)
            case PutInventories(uuid=uuid, inventories=inventories):
                return self._put_inventories(uuid, inventories, generation)
            case PutTraits(uuid=uuid, traits=traits):
                return self._put_traits(uuid, traits, generation)
            case PutAggregates(uuid=uuid, aggregates=aggregates):
                body = {
                    'aggregates': sorted(aggregates),
                    'resource_provider_generation': generation,
                }
                return self._put_part(uuid, 'aggregates', body)

    def delete(self, uuid: str) -> None:
        """Delete a provider; one that is not there is no error.

        :raises errors.ProviderInUse: something is allocated on it
        """
        try:
            self._ask('DELETE', f'/resource_providers/{uuid}')
        except errors.ProviderNotFound:
            return

    def _create(self, uuid: str) -> int:
        body = self._ask(
            'POST', '/resource_providers', {'uuid': uuid, 'name': uuid}
        )
        return int(body['generation'])

    def _put_inventories(
        self, uuid: str, inventories: Inventories, generation: int
    ) -> int:
        for name in inventories:
            self._ensure_custom('resource_classes', name)
        body = {
            'inventories': {k: dict(v) for k, v in inventories.items()},
            'resource_provider_generation': generation,
        }
        return self._put_part(uuid, 'inventories', body)

    def _put_traits(
        self, uuid: str, traits: Iterable[str], generation: int
    ) -> int:
        known = [name for name in sorted(traits) if self._is_usable(name)]
        body = {'traits': known, 'resource_provider_generation': generation}
        return self._put_part(uuid, 'traits', body)

    def _put_part(self, uuid: str, part: str, body: Mapping[str, Any]) -> int:
        url = f'/resource_providers/{uuid}/{part}'
        answer = self._ask('PUT', url, body)
        return int(answer['resource_provider_generation'])

    # Names

    def _is_usable(self, trait: str) -> bool:
        if os_traits.is_custom(trait):
            self._ensure_custom('traits', trait)
            return True
        if trait not in self._standard:
            found = self._get(f'/traits?name=in:{trait}')
            self._standard[trait] = trait in found['traits']
        return self._standard[trait]

    def _ensure_custom(self, kind: str, name: str) -> None:
        if not os_resource_classes.is_custom(name) or name in self._custom:
            return
        self._ask('PUT', f'/{kind}/{name}')
        with self._names:
            self._custom.add(name)

    # HTTP

    def _get(self, url: str) -> Any:
        return self._ask('GET', url)

    def _ask(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> Any:
        arguments: dict[str, Any] = {} if body is None else {'json': body}
        try:
            response = self._adapter.request(
                url,
                method,
                microversion=MICROVERSION,
                raise_exc=False,
                **arguments,
            )
        except ksa_exc.ClientException as exc:
            raise errors.PlacementUnavailable(
                f'Placement did not answer {method} {url}: {exc}'
            ) from exc
        if response.status_code >= 400:
            raise _error(method, url, response)
        return response.json() if response.content else {}


def _error(method: str, url: str, response: Any) -> errors.PlacementError:
    status = response.status_code
    code, detail = _details(response)
    sentence = f'Placement answered {status} to {method} {url}: {detail}'
    kinds: tuple[tuple[bool, type[errors.PlacementError]], ...] = (
        (code in _IN_USE, errors.ProviderInUse),
        (status == 409, errors.GenerationConflict),
        (status == 404, errors.ProviderNotFound),
        (status >= 500 or status in (401, 429), errors.PlacementUnavailable),
    )
    kind = next((k for holds, k in kinds if holds), errors.PlacementRefused)
    return kind(sentence)


def _details(response: Any) -> tuple[str, str]:
    """Return Placement's error code and text, as far as there are any."""
    try:
        first = response.json()['errors'][0]
    except (ValueError, KeyError, IndexError, TypeError):
        return '', str(response.text)[:200]
    return first.get('code', ''), str(first.get('detail', '')).strip()
