# SPDX-License-Identifier: Apache-2.0
"""What Nova's own code changes waits at the gate, too.

Nova's handlers write their rows through nova-conductor and their allocations
to Placement. Each such request waits until the lease is in force, in the
thread that makes it, just before it is sent; reads never wait. Two records
are none of that:

* The Service record: while the lease has lapsed somebody has to tell Nova
  that the host is up, or nova-api deletes servers by itself.
* ComputeNode records: ``rows`` alone writes them, and waits itself, because
  what it has decided it must decide again when the gate has opened.

What Nova's handlers have decided before they waited is fenced from outside:
by ``expected_task_state`` and by the generations of Placement. A worker that
lost its host for good is killed while it waits, so nothing is sent then.
"""

import functools
from collections.abc import Callable
from typing import Any

from nova.conductor import rpcapi

from ironic_compute.gate import Gate

# What a remote method does is told by its name; one that is not known to read
# is taken for one that writes.
_READS = (
    '_get',
    '_load',
    'check',
    'count',
    'exists',
    'get',
    'in_use',
    'limit_check',
    'refresh',
    'validate',
)
_EXEMPT = frozenset({'Service', 'ComputeNode'})
_PLACEMENT_WRITES = ('post', 'put', 'delete')


class GatedConductor(rpcapi.ConductorAPI):
    """How Nova's objects reach the database from a worker.

    Any thread may call; one that writes blocks while the gate is shut.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def object_class_action_versions(
        self,
        context: Any,
        objname: str,
        objmethod: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a method of a class of objects."""
        self._wait(objname, objmethod)
        return super().object_class_action_versions(
            context, objname, objmethod, *args, **kwargs
        )

    def object_action(
        self,
        context: Any,
        objinst: Any,
        objmethod: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a method of an object."""
        self._wait(objinst.obj_name(), objmethod)
        return super().object_action(
            context, objinst, objmethod, *args, **kwargs
        )

    def _wait(self, name: str, method: str) -> None:
        if name not in _EXEMPT and not method.startswith(_READS):
            self._gate.wait()


def gate_placement(client: Any, gate: Gate) -> None:
    """Have the writes of one of Nova's clients of Placement wait.

    Whoever holds this client waits from now on, whenever he was given it.
    """
    for name in _PLACEMENT_WRITES:
        setattr(client, name, _after(gate, getattr(client, name)))


def _after(gate: Gate, send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def wait_and_send(*args: Any, **kwargs: Any) -> Any:
        gate.wait()
        return send(*args, **kwargs)

    return wait_and_send
