# SPDX-License-Identifier: Apache-2.0
"""Probe of Placement: whether it gives one node to several consumers.

Placement's API shows neither its options nor its database. Therefore the probe
tries: it creates a provider with one unit of a resource class that no flavor
requests, and has several consumers allocate the unit at once. Each of them
and the provider are deleted again. The provider's name is always the same, and
Placement accepts a name once, so that a probe that was killed leaves one
provider at most, and the next probe finds it.
"""

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import attrs
from keystoneauth1 import exceptions as ksa_exc

from ironic_compute import access_errors, errors
from resource_tracker.placement import MICROVERSION

NAME = 'ironic-compute-status'
RESOURCE_CLASS = 'CUSTOM_IRONIC_COMPUTE_STATUS'
# A Placement with the defect showed it in 29 of 100 tries of four consumers;
# twenty tries miss it once in a thousand runs.
TRIES_COUNT = 20
CONSUMERS_COUNT = 4
_TIMEOUT_S = 30.0

_PROVIDERS_URL = '/resource_providers'
_CLASS_URL = f'/resource_classes/{RESOURCE_CLASS}'


class ProbeFailed(Exception):
    """The probe has no result; the message has the reason."""


@attrs.define(eq=False, repr=False, slots=False)
class PlacementProbe:
    """One probe; it writes to Placement and removes what it wrote.

    :param adapter: a keystoneauth1 adapter for the service type placement
    """

    _adapter: Any

    def __attrs_post_init__(self) -> None:
        self._uuid = str(uuid.uuid4())
        self._consumers: Sequence[str] = ()

    def run(self) -> int | None:
        """Return the first try in which several consumers got the unit.

        :returns: None if there was none in ``TRIES_COUNT`` tries
        :raises ProbeFailed: Placement refused a request or did not answer, or
            the provider could not be deleted
        """
        self._require('PUT', _CLASS_URL)
        try:
            self._create_provider()
            return self._find_double_allocation()
        finally:
            # Also after an error: a request without an answer may have
            # created something.
            self._clean_up()

    def _create_provider(self) -> None:
        body = {'uuid': self._uuid, 'name': NAME}
        if self._status('POST', _PROVIDERS_URL, body) == 409:
            raise ProbeFailed(
                f'Placement has a provider named {NAME}: another probe is '
                f'running, or was killed. If none is running, delete the '
                f"provider's allocations and the provider"
            )
        inventory = {
            'inventories': {RESOURCE_CLASS: {'total': 1}},
            'resource_provider_generation': 0,
        }
        self._require('PUT', f'{self._url}/inventories', inventory)

    def _find_double_allocation(self) -> int | None:
        # At an error the threads end before the pool does, and so before the
        # clean-up begins.
        with futures.ThreadPoolExecutor(CONSUMERS_COUNT) as threads:
            for number in range(1, TRIES_COUNT + 1):
                self._consumers = [
                    str(uuid.uuid4()) for _ in range(CONSUMERS_COUNT)
                ]
                statuses = [*threads.map(self._allocate, self._consumers)]
                self._deallocate()
                if statuses.count(204) > 1:
                    return number
        return None

    def _allocate(self, consumer: str) -> int:
        body = {
            'allocations': {self._uuid: {'resources': {RESOURCE_CLASS: 1}}},
            'consumer_generation': None,
            'consumer_type': 'INSTANCE',
            # Placement keeps these names, so there is one of each.
            'project_id': NAME,
            'user_id': NAME,
        }
        return self._status('PUT', f'/allocations/{consumer}', body)

    def _deallocate(self) -> None:
        for consumer in self._consumers:
            self._status('DELETE', f'/allocations/{consumer}')

    def _clean_up(self) -> None:
        with contextlib.suppress(ProbeFailed):
            self._deallocate()
        try:
            status: object = self._status('DELETE', self._url)
        except ProbeFailed as exc:
            status = exc
        if status not in (204, 404):
            raise ProbeFailed(
                f'The provider {self._uuid} of the probe could not be deleted '
                f'({status}); delete its allocations, then use "openstack '
                f'resource provider delete"'
            )
        # Refused while another probe uses the class; harmless if it stays.
        with contextlib.suppress(ProbeFailed):
            self._status('DELETE', _CLASS_URL)

    @property
    def _url(self) -> str:
        return f'{_PROVIDERS_URL}/{self._uuid}'

    def _require(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> None:
        status = self._status(method, url, body)
        if status >= 400:
            raise ProbeFailed(f'Placement answered {status} to {method} {url}')

    def _status(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> int:
        try:
            with access_errors.translated_token('placement'):
                response = self._adapter.request(
                    url,
                    method,
                    json=body,
                    microversion=MICROVERSION,
                    raise_exc=False,
                    timeout=_TIMEOUT_S,
                )
        except (ksa_exc.ClientException, errors.ConfigError) as exc:
            raise ProbeFailed(
                f'Placement did not answer {method} {url}: {exc}'
            ) from exc
        return int(response.status_code)
