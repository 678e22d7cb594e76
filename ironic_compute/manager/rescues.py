# SPDX-License-Identifier: Apache-2.0
"""Rescues whose message RabbitMQ delivers again.

A rescue takes minutes, and its message is acknowledged at the end. If its
worker has ended meanwhile, the next one gets the message again. Nova's handler
begins with switching the server off, which would interrupt the rescue, or
leave the rescued machine off.

A node in rescue boots Ironic's ramdisk, so Glance is not asked for the
server's image: it may have been deleted since.

If Ironic does not answer, the server is not switched off until it does; for
the rest of the rescue see ``driver.rescue``.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import functools
from typing import Any

from nova.compute import manager as nova_manager
from nova.compute import task_states

from hashring.clock import Clock
from ironic_compute.driver.rescue import until_answered


class RepeatedRescues(nova_manager.ComputeManager):
    """Nova's ComputeManager, which goes on with a rescue that has begun."""

    clock: Clock
    driver: Any

    def _get_rescue_image(
        self, context: Any, instance: Any, rescue_image_ref: Any = None
    ) -> Any:
        """Return what the server's record says of its image."""
        return instance.image_meta

    def _power_off_instance(
        self, context: Any, instance: Any, clean_shutdown: bool = True
    ) -> None:
        """Switch a server off, unless Ironic has begun its rescue."""
        switch_off = functools.partial(
            super()._power_off_instance, context, instance, clean_shutdown
        )
        if instance.task_state != task_states.RESCUING:
            switch_off()
            return

        def switch_off_unless_begun() -> None:
            if not self.driver.is_rescue_begun(instance):
                switch_off()

        until_answered(switch_off_unless_begun, instance, self.clock)
