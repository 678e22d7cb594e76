# SPDX-License-Identifier: Apache-2.0
"""Differences between the supported Nova series, 33 and 34, in one place.

No other module depends on Nova's version. The functions here check whether
Nova has a feature and do not compare version numbers.
"""

import contextlib
import inspect
import sys
from collections.abc import Collection
from typing import Any

from oslo_config import cfg


def patch_concurrency() -> None:
    """Choose threads or eventlet; call it before any other import.

    Nova reads ``OS_NOVA_DISABLE_EVENTLET_PATCHING`` and, from 34 on,
    ``[DEFAULT] concurrency_backend``; unset means threads.
    """
    from nova import monkey_patch

    monkey_patch.patch(backend='threading')


def renew_event_loop() -> None:
    """Give a process that was just forked an event loop of its own.

    Under eventlet it would wait on the epoll descriptor of its parent. With
    threads there is no event loop.
    """
    patcher = sys.modules.get('eventlet.patcher')  # Only Nova imports it.
    if patcher is not None and patcher.is_monkey_patched('thread'):
        hubs = sys.modules['eventlet.hubs']
        parents = getattr(hubs.get_hub(), 'poll', None)
        if parents is not None:
            parents.close()
        hubs.use_hub()


def service_arguments() -> dict[str, Any]:
    """Return the constructor arguments of Nova's Service for this series."""
    from nova.compute import rpcapi

    arguments = {'topic': rpcapi.RPC_TOPIC}
    if hasattr(rpcapi, 'RPC_TOPIC_ALT'):
        arguments['topic_alt'] = rpcapi.RPC_TOPIC_ALT
    return arguments


def run_service(server: Any) -> None:
    """Run a Nova service in this process until SIGTERM; blocks."""
    from nova import service

    arguments = {}
    if 'no_fork' in inspect.signature(service.serve).parameters:
        arguments['no_fork'] = True
    service.serve(server, workers=1, **arguments)
    service.wait()


def set_build_executor(executor: Any) -> None:
    """Make Nova's managers build servers in the given thread pool.

    Call it before a manager is created, and never on eventlet.
    """
    try:
        from nova import thread_pool_factory as factory
    except ImportError:
        from nova import utils

        executor.name = 'long_task'
        utils.LONG_TASK_EXECUTOR = executor
    else:
        kind = factory.ExecutorType.LONG_TASK
        executor.name = kind.value
        factory.FACTORY._all_executors[kind] = executor


def list_served(manager: Any) -> list[str | None]:
    """Return the servers of the messages that a manager is handling.

    Empty under Nova 33, which keeps no list and waits for the messages.
    """
    tasks = getattr(manager, '_in_progress_tasks', {})
    return [task['instance_uuid'] for task in list(tasks.values())]


def set_default(conf: Any, name: str, value: Any, group: Any) -> None:
    """Set an option's default if this Nova has the option."""
    with contextlib.suppress(cfg.NoSuchOptError, cfg.NoSuchGroupError):
        conf.set_default(name, value, group)


def rebind_periodics(cls: Any, disabled: Collection[str] = ()) -> None:
    """Make periodic tasks that a manager overrides run in place of Nova's.

    oslo.service keeps the *parent's* function objects, so an override of a
    periodic task is never called, or called in addition to the parent's. This
    function puts each override in its parent's place with the parent's timing,
    and leaves out the tasks named in ``disabled``. Names of tasks that this
    Nova lacks are ignored.

    :param cls: a subclass of ``oslo_service.periodic_task.PeriodicTasks``
    :param disabled: names of tasks that must not run
    """
    tasks: dict[str, Any] = {}
    for name, inherited in cls._periodic_tasks:
        own = getattr(cls, inherited.__name__, inherited)
        if own is not inherited:
            timing = {
                key: value
                for key, value in inherited.__dict__.items()
                if key.startswith('_periodic')
            }
            own.__dict__.update(timing)
        tasks[name] = own
    cls._periodic_tasks = [
        (name, task) for name, task in tasks.items() if name not in disabled
    ]
