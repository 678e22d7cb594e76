# SPDX-License-Identifier: Apache-2.0
"""Proves the functional tests' ground on stock nova-compute's fake driver."""

from tests.functional import base


class HarnessTestCase(base.NovaTestCase):
    """Nova with its own manager and its own fake virt driver."""

    def test_stock_compute_boots_and_deletes(self) -> None:
        """A server becomes ACTIVE on the stock driver and leaves no trace."""
        self.start_compute('c1')
        flavor = self.api.get_flavors()[0]

        server = self.boot(flavor)

        self.assertEqual('c1', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(1, len(self.allocations(server)))
        self.delete(server)
        self.assertEqual({}, self.allocations(server))

    def test_two_hosts_share_one_process(self) -> None:
        """Two compute services start side by side, each with its mapping."""
        for host in ('c1', 'c2'):
            self.start_compute(host)

        services = self.api.get_services(binary='nova-compute')

        self.assertEqual({'c1', 'c2'}, {each['host'] for each in services})
        self.assertEqual({'c1', 'c2'}, set(self.host_mappings))
