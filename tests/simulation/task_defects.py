# SPDX-License-Identifier: Apache-2.0
"""Planted defects of the tasks of servers; see ``defects``."""

from typing import Any

from nova.compute import task_states

from ironic_compute import delivery
from ironic_compute.manager.build_messages import BuildMessages
from ironic_compute.manager.retries import retried, while_kept
from ironic_compute.manager.stale_messages import refresh
from ironic_compute.recovery.failures import clear_task
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from tests.simulation.handlers import Manager, rebuild
from tests.simulation.makeup import Makeup, with_parts


class EndsInterruptedRequests(Manager):
    """A rebuild or unshelve that is delivered again is not begun anew."""

    rebuild_instance = BuildMessages.rebuild_instance
    unshelve_instance = BuildMessages.unshelve_instance


class BeginsAnewOnlyAlone(Manager):
    """A request is not begun anew if another message is served just then."""

    @retried('%(server)s: %(error)s', while_kept)
    def _put_back(
        self, context: Any, instance: Any, restart: Any, wanted: Any
    ) -> None:
        message = delivery.current()
        exists = refresh(instance, self.clock)
        if exists and message is not None and message.is_redelivered:
            with self.in_progress.exclusive(instance.uuid) as is_free:
                if is_free:
                    restart(context, instance, wanted)


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
        'tasks', 'crash', 'kill', manager=EndsInterruptedRequests
    ),
    'redelivered request dropped beside another': with_parts(
        'tasks', 'crash', manager=BeginsAnewOnlyAlone
    ),
    'interrupted rebuild begun again': with_parts(
        'tasks', 'crash', resume=RebuildsAgain
    ),
    'interrupted stop forgotten': with_parts(
        'tasks', 'crash', resume=LeavesStops
    ),
}
SEEDS: dict[str, int] = {
    'redelivered request not begun anew': 43,
    'redelivered request dropped beside another': 60179,
    'interrupted rebuild begun again': 42,
    'interrupted stop forgotten': 94,
}
