# SPDX-License-Identifier: Apache-2.0
"""Rescues whose message RabbitMQ delivers again.

A rescue takes minutes, and its message is acknowledged at the end. If its
worker has ended meanwhile, the next one gets the message again. Nova's handler
begins with switching the server off, which would interrupt the rescue, or
leave the rescued machine off.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any

from nova.compute import manager as nova_manager
from nova.compute import task_states


class RepeatedRescues(nova_manager.ComputeManager):
    """Nova's ComputeManager, which goes on with a rescue that has begun."""

    driver: Any

    def _power_off_instance(
        self, context: Any, instance: Any, clean_shutdown: bool = True
    ) -> None:
        """Switch a server off, unless Ironic has begun its rescue."""
        is_rescue = instance.task_state == task_states.RESCUING
        if not (is_rescue and self.driver.is_rescue_begun(instance)):
            super()._power_off_instance(context, instance, clean_shutdown)
