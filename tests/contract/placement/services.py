# SPDX-License-Identifier: Apache-2.0
"""The real Placement in this process, and writes of other clients."""

import contextlib
from collections.abc import Iterator

from oslo_config import cfg
from oslo_config import fixture as oslo_fixture
from placement import conf as placement_conf
from placement import context, direct
from placement.objects import trait as traits
from placement.tests import fixtures

from resource_tracker.placement import Placement


class RealPlacement(Placement):
    """The client on the real service; ``requests`` has what it sent."""

    def __init__(self, adapter, conf):
        super().__init__(adapter)
        self._conf = conf
        self.requests = []

    def _request(self, method, url, *arguments, **options):
        self.requests.append(f'{method} {url}')
        return super()._request(method, url, *arguments, **options)

    def make_provider(self, uuid, name):
        """Create a provider whose name is not its uuid."""
        self._request(
            'POST', '/resource_providers', {'uuid': uuid, 'name': name}
        )

    def allocate(self, uuid, consumer, resource_class):
        """Allocate one unit as Nova's scheduler does."""
        body = {
            'allocations': {uuid: {'resources': {resource_class: 1}}},
            'consumer_generation': None,
            'project_id': 'p',
            'user_id': 'u',
            'consumer_type': 'INSTANCE',
        }
        self._request('PUT', f'/allocations/{consumer}', body)

    def read_allocations(self, consumer):
        """Return the allocations of a consumer by provider, as Nova does."""
        return self._request('GET', f'/allocations/{consumer}')['allocations']

    def deallocate(self, uuid, consumer):
        """Delete the allocations of a consumer."""
        self._request('DELETE', f'/allocations/{consumer}')

    def add_trait(self, uuid, trait):
        """Set a trait on a provider."""
        self._request('PUT', f'/traits/{trait}')
        url = f'/resource_providers/{uuid}/traits'
        body = self._request('GET', url)
        body['traits'].append(trait)
        self._request('PUT', url, body)

    def add_standard_trait(self, trait):
        """Add a standard trait, as a newer library of traits does."""
        traits.Trait(
            context.RequestContext(config=self._conf), name=trait
        ).create()

    def delete_trait(self, uuid, trait):
        """Remove a trait from a provider, and delete the trait."""
        url = f'/resource_providers/{uuid}/traits'
        body = self._request('GET', url)
        body['traits'].remove(trait)
        self._request('PUT', url, body)
        self._request('DELETE', f'/traits/{trait}')

    def candidates(self, resource_class, required):
        """Return the providers that the scheduler would be offered."""
        url = (
            f'/allocation_candidates?resources={resource_class}:1'
            f'&required={required}'
        )
        return set(self._request('GET', url)['provider_summaries'])

    def add_aggregate(self, uuid, aggregate):
        """Put a provider into an aggregate."""
        url = f'/resource_providers/{uuid}/aggregates'
        body = self._request('GET', url)
        body['aggregates'].append(aggregate)
        self._request('PUT', url, body)


@contextlib.contextmanager
def real_placement() -> Iterator[RealPlacement]:
    """Return a real Placement on SQLite in memory, for one thread."""
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf.set_override('connection', 'sqlite://', group='placement_database')
    conf([], project='placement', default_config_files=[])
    with (
        fixtures.Database(oslo_fixture.Config(conf)),
        direct.PlacementDirect(conf) as adapter,
    ):
        yield RealPlacement(adapter, conf)
