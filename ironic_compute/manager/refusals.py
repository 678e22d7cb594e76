# SPDX-License-Identifier: Apache-2.0
"""How an operation is refused: the reason, the event, the end of the task.

Each refusal gives the user the reason and an alternative in one sentence, as
an event of the action. The log gets a line instead of a traceback.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import oslo_messaging
from nova import exception as nova_exception
from nova import safe_utils
from nova.compute import manager as nova_manager
from nova.compute import utils as compute_utils

from ironic_compute.manager.newer_tasks import keeping_newer_tasks

# The reasons by the method of Nova's manager. The manual repeats each one.
REASONS: Mapping[str, str] = {
    'pause_instance': (
        'A bare metal server cannot be paused; stop it instead'
    ),
    'suspend_instance': (
        'A bare metal server cannot be suspended; stop it instead'
    ),
    'snapshot_instance': (
        'No image can be made of the disks of a bare metal server; copy them '
        'from within the server'
    ),
    'backup_instance': (
        'No backup can be made of the disks of a bare metal server; copy '
        'them from within the server'
    ),
    'shelve_instance': (
        'A bare metal server can be shelved only if its root disk is a '
        'volume; stop it instead'
    ),
    'prep_resize': (
        'A bare metal server cannot be resized or migrated, because it is '
        'its machine; create another server instead'
    ),
    'check_can_live_migrate_destination': (
        'A bare metal server cannot be migrated, because it is its machine; '
        'create another server instead'
    ),
    'rebuild_instance': (
        'The root disk of this server is a volume, which cannot be written '
        'anew on bare metal; create another server instead'
    ),
    'evacuate': (
        'A bare metal server cannot be evacuated, because its disks are in '
        'its machine; it is served again as soon as a compute daemon of its '
        'pool runs'
    ),
    'swap_volume': (
        'A volume of a bare metal server cannot be replaced; create another '
        'server with the other volume instead'
    ),
    'allow_share': (
        'Shares cannot be attached to a bare metal server; mount them from '
        'within the server'
    ),
    'set_admin_password': (
        'only the system on a bare metal server can change its passwords; '
        'log in and change it there, or use rescue'
    ),
}

Method = Callable[..., Any]


def reported(function: Method, *ends: Callable[[Method], Method]) -> Method:
    """Wrap a method in Nova's decorators that report an error to the user.

    The server's action gets an event with the reason, and the log gets a line
    instead of a traceback. The order of the decorators is Nova's.
    """
    for wrap in (
        nova_manager.wrap_instance_fault,
        nova_manager.wrap_instance_event(prefix='compute'),
        *ends,
        nova_manager.wrap_exception(),
        oslo_messaging.expected_exceptions(nova_exception.NovaException),
    ):
        function = wrap(function)
    return function


def reported_and_idle(function: Method) -> Method:
    """Wrap a method like ``reported``, and clear the server's task.

    Use it only for operations for which nova-api sets a task state; otherwise
    the task of another operation would be cleared.
    """
    return reported(
        function, nova_manager.reverts_task_state, _keeping_newer_task
    )


def _keeping_newer_task(function: Method) -> Method:
    """Let a refusal clear no task but its own.

    nova-api accepts a hard reboot of a server that is to be paused or
    suspended, and any request if the refusal's message comes twice.
    """
    bare = safe_utils.get_wrapped_function(function)

    @functools.wraps(function)
    def refuse(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        call = inspect.getcallargs(bare, self, context, *args, **kwargs)
        server = call['instance']
        with keeping_newer_tasks(server, frozenset({server.task_state})):
            return function(self, context, *args, **kwargs)

    return refuse


def refusing(name: str) -> Method:
    """Return a manager method that only refuses an operation."""

    def refuse(
        self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        raise nova_exception.NovaException(REASONS[name])

    # Nova uses the function's name as the name of the action's event.
    refuse.__name__ = name
    return reported_and_idle(refuse)


def refusing_image(name: str) -> Method:
    """Return a manager method that refuses, and deletes nova-api's image."""

    def refuse(
        self: Any,
        context: Any,
        instance: Any,
        image_id: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        compute_utils.delete_image(context, instance, self.image_api, image_id)
        raise nova_exception.NovaException(REASONS[name])

    refuse.__name__ = name
    return reported_and_idle(refuse)


def refusal_of(
    name: str, report: Callable[[Method], Method] = reported_and_idle
) -> Callable[[Method], Method]:
    """Decorate a refusal; Nova gives the action's event the name ``name``.

    :param report: ``reported`` for an operation without a task state
    """

    def rename(function: Method) -> Method:
        function.__name__ = name
        return report(function)

    return rename
