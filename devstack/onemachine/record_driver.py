# SPDX-License-Identifier: Apache-2.0
"""A volume driver for cinder-volume whose volumes are mere records.

Nothing is stored and nothing is exported, as Ironic's fake hardware reads
nothing. Everything above the driver is Cinder's own.
"""

from typing import Any

from cinder import interface
from cinder.volume import driver

_CAPACITY_GB = 10000


@interface.volumedriver
class RecordDriver(driver.VolumeDriver):
    """Accepts each request; a connection has the form of an iSCSI one."""

    VERSION = '1.0'

    def check_for_setup_error(self) -> None:
        """There is nothing that could be wrong."""

    def create_volume(self, volume: Any) -> None:
        """See the class."""

    def delete_volume(self, volume: Any) -> None:
        """See the class."""

    def ensure_export(self, context: Any, volume: Any) -> None:
        """See the class."""

    def create_export(self, context: Any, volume: Any, to: Any) -> None:
        """See the class."""

    def remove_export(self, context: Any, volume: Any) -> None:
        """See the class."""

    def initialize_connection(self, volume: Any, to: Any) -> dict[str, Any]:
        """Return what a machine needs to log in to the volume."""
        data = {
            'target_portal': '192.0.2.1:3260',
            'target_iqn': f'iqn.2010-10.org.openstack:{volume.id}',
            'target_lun': 1,
            'volume_id': volume.id,
            'access_mode': 'rw',
        }
        return {'driver_volume_type': 'iscsi', 'data': data}

    def terminate_connection(
        self, volume: Any, to: Any, **kwargs: Any
    ) -> None:
        """See the class."""

    def _update_volume_stats(self) -> None:
        self._stats = {
            'volume_backend_name': self.configuration.volume_backend_name,
            'vendor_name': 'nobody',
            'driver_version': self.VERSION,
            'storage_protocol': 'iSCSI',
            'pools': [
                {
                    'pool_name': 'records',
                    'total_capacity_gb': _CAPACITY_GB,
                    'free_capacity_gb': _CAPACITY_GB,
                }
            ],
        }
