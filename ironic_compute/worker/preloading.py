# SPDX-License-Identifier: Apache-2.0
"""What a fork server loads: all of a worker that needs no configuration.

The compute manager is not loaded, because importing it freezes the intervals
of Nova's periodic tasks: they would be those of an empty nova.conf. The
modules that it imports are loaded.
"""

import importlib

import setproctitle
from nova import objects

from ironic_compute.worker import process

# Imported by the compute manager of Nova, and by ours.
_OF_THE_MANAGER = (
    'nova.compute.api',
    'nova.compute.resource_tracker',
    'nova.virt.configdrive',
    'nova.volume.cinder',
    'os_brick.initiator.utils',
    'ironic_compute.driver.driver',
    'ironic_compute.ownership.eviction',
    'ironic_compute.recovery.loop',
)


def load() -> None:
    """Load everything, and name this process the fork server."""
    objects.register_all()
    for name in _OF_THE_MANAGER:
        importlib.import_module(name)
    setproctitle.setproctitle(f'{process.PROG}: fork server')
