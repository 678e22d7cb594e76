# SPDX-License-Identifier: Apache-2.0
"""Ask the real scheduler where it would send a server.

All filters and pre-filters run, and the allocation is made in Placement and
given back: only the build is left out, which takes a second each time.
"""

import uuid
from typing import Any

from nova import context as nova_context
from nova import objects
from oslo_messaging.rpc import dispatcher

from tests.functional import base, pool

# What an image says that asks for nothing.
_PLAIN_IMAGE = {'id': base.IMAGE_ID, 'properties': {}}


class SchedulerTestCase(pool.PoolTestCase):
    """Workers, and questions to the scheduler."""

    # Nova's default filters, and those that a class adds.
    FILTERS: tuple[str, ...] = ()

    def _use_fixtures(self) -> None:
        """Set the filters before the scheduler starts."""
        super()._use_fixtures()
        group = 'filter_scheduler'
        enabled = [*pool.CONF.filter_scheduler.enabled_filters, *self.FILTERS]
        self.flags(enabled_filters=enabled, group=group)

    def setUp(self) -> None:
        """Know the nodes by number."""
        super().setUp()
        self.nodes = sorted(self.ironic.nodes)

    def change(self, node: str, **fields: Any) -> None:
        """Change a node in Ironic, and let the workers hear of it."""
        self.ironic.change(node, **fields)
        for host in self.workers:
            self.components(host).feed.request_read(node)

    def chosen(
        self,
        specs: dict[str, str],
        *,
        zone: str | None = None,
        image: dict[str, Any] | None = None,
    ) -> str | None:
        """Return the node for a flavor with these extra specs; None: none."""
        context = nova_context.RequestContext('admin', 'project', True)
        consumer = str(uuid.uuid4())
        spec = objects.RequestSpec.from_components(
            context,
            consumer,
            {**_PLAIN_IMAGE, 'properties': image or {}},
            _flavor(specs),
            None,
            None,
            {},
            None,
            zone,
        )
        try:
            found = self.scheduler.manager.select_destinations(
                context,
                spec_obj=spec,
                instance_uuids=[consumer],
                return_objects=True,
            )
        except dispatcher.ExpectedException as exc:
            # NoValidHost, wrapped for the one that called by RPC.
            self.assertIn('No valid host', str(exc.exc_info[1]))
            return None
        self.placement.delete(f'/allocations/{consumer}')
        return str(found[0][0].nodename)

    def expect(
        self,
        node: str | None,
        specs: dict[str, str],
        image: dict[str, Any] | None = None,
    ) -> None:
        """Wait until the scheduler chooses this node, or none."""
        self.until(
            lambda: self.chosen(specs, image=image) == node,
            f'{node} for {specs} and {image}',
        )

    def expect_one_of(
        self, nodes: set[str], specs: dict[str, str], zone: str | None = None
    ) -> None:
        """Wait until the scheduler chooses one of these nodes.

        It finds none while one of them is written to: its allocation is
        refused then, as another generation's.
        """
        self.until(
            lambda: self.chosen(specs, zone=zone) in nodes,
            f'one of {nodes} for {specs} in {zone}',
        )


def wants(resource_class: str, **traits: str) -> dict[str, str]:
    """Return what a flavor of bare metal says."""
    return {
        f'resources:{resource_class}': '1',
        'resources:VCPU': '0',
        'resources:MEMORY_MB': '0',
        'resources:DISK_GB': '0',
        **{f'trait:{name}': how for name, how in traits.items()},
    }


def _flavor(specs: dict[str, str]) -> objects.Flavor:
    return objects.Flavor(
        id=1,
        flavorid='1',
        name='metal',
        memory_mb=1,
        vcpus=1,
        root_gb=0,
        ephemeral_gb=0,
        swap=0,
        rxtx_factor=1.0,
        is_public=True,
        disabled=False,
        vcpu_weight=0,
        extra_specs=specs,
    )
