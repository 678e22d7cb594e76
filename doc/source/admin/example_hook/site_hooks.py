# SPDX-License-Identifier: Apache-2.0
"""An example of a config drive hook: jumbo frames, and the name of the rack.

A package of the site contains this module and declares the entry point.
"""

from ironic_compute.driver.config_drive_hooks import ConfigDriveHook

_JUMBO_MTU = 9000


class SiteHook(ConfigDriveHook):
    """Sets the MTU of each link, and adds the site to the metadata."""

    def change_network_data(self, network_data, instance, node):
        """Return the network data with the MTU of the site."""
        links = [{**link, 'mtu': _JUMBO_MTU} for link in network_data['links']]
        return {**network_data, 'links': links}

    def extra_metadata(self, instance, node):
        """Return the entries that the images of the site read."""
        return {'site': {'node': node, 'project': instance.project_id}}
