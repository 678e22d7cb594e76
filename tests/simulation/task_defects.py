# SPDX-License-Identifier: Apache-2.0
"""Planted defects of the tasks of servers; see ``defects``."""

from typing import Any

from nova.compute import task_states

from ironic_compute.manager.build_messages import BuildMessages
from ironic_compute.recovery.failures import clear_task
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from tests.simulation.handlers import Manager, rebuild
from tests.simulation.makeup import Makeup, with_parts


class EndsInterruptedRequests(Manager):
    """A rebuild or unshelve that is delivered again is not begun anew."""

    rebuild_instance = BuildMessages.rebuild_instance
    unshelve_instance = BuildMessages.unshelve_instance


class RebuildsAgain(InterruptedTasks):
    """A rebuild is begun again although Ironic already deploys."""

    def _rebuild(self, context: Any, instance: Any) -> None:
        instance.task_state = task_states.REBUILDING
        instance.save()
        manager: Any = self._manager
        image = instance.image_ref
        rebuild(manager, context, instance, image, image, {})


class LeavesStops(InterruptedTasks):
    """An interrupted stop is ended without a look at the node."""

    def _stop(self, context: Any, instance: Any) -> None:
        clear_task(instance)


MAKEUPS: dict[str, Makeup] = {
    'redelivered request not begun anew': with_parts(
        manager=EndsInterruptedRequests
    ),
    'interrupted rebuild begun again': with_parts(resume=RebuildsAgain),
    'interrupted stop forgotten': with_parts(resume=LeavesStops),
}
SEEDS: dict[str, int] = {
    'redelivered request not begun anew': 1203,
    'interrupted rebuild begun again': 1034,
    'interrupted stop forgotten': 1083,
}
