# SPDX-License-Identifier: Apache-2.0
"""Keeps late saves of a build away from a server that is built.

nova-conductor may carry out a request a minute after its sender has repeated
it. Nova's first save of a build expects that the server has no task, and its
second one expects nothing. An ACTIVE or a shelved server has no task either,
so a late save made it BUILDING again, with the task ``networking``. A shelved
server has no host whose recovery would mend that, and ended in ERROR as a lost
build. Here these saves expect that the server is still building.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from nova.compute import task_states, vm_states

# The task states with which Nova begins a build.
_BEGINS = frozenset({task_states.NETWORKING, task_states.BLOCK_DEVICE_MAPPING})


@contextlib.contextmanager
def expecting_unbuilt(instance: Any) -> Iterator[None]:
    """Let the first saves of a build in the body expect a building server.

    If the server is not building any more, because its build was ended or its
    state was reset meanwhile, such a save changes nothing, and Nova aborts the
    build.
    """
    save = instance.save

    def save_unbuilt(*args: Any, **kwargs: Any) -> None:
        if instance.task_state in _BEGINS:
            kwargs['expected_vm_state'] = [vm_states.BUILDING]
        save(*args, **kwargs)

    instance.save = save_unbuilt
    try:
        yield
    finally:
        del instance.save
