# SPDX-License-Identifier: Apache-2.0
"""The driver's own errors, and the doors where ours become Nova's.

Inside the driver only our errors travel. Whoever is called by Nova wraps
its work in one of the doors below; an exception that is not ours (of
Neutron, of Nova's database) passes untouched, because Nova knows it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from nova import exception as nova_exception
from nova.compute import task_states

from ironic_compute import errors


class NoNode(errors.IronicComputeError):
    """Ironic has no node with this server on it."""


class Cancelled(errors.IronicComputeError):
    """The user deleted the server while it was being built."""


class PowerFailed(errors.IronicComputeError):
    """Ironic ended a power action in another state than the one asked."""


@contextlib.contextmanager
def door(
    instance: Any, failure: Callable[..., Exception] | None = None
) -> Iterator[None]:
    """Turn our errors into Nova's.

    :param failure: the Nova exception that this operation documents; it
        takes ``reason``. Without it the general table decides.
    """
    try:
        yield
    except NoNode as exc:
        raise nova_exception.InstanceNotFound(
            instance_id=instance.uuid
        ) from exc
    except errors.IronicComputeError as exc:
        if failure is None:
            raise errors.to_nova(exc, instance) from exc
        raise failure(reason=str(exc)) from exc


@contextlib.contextmanager
def build_door(instance: Any) -> Iterator[None]:
    """Turn our errors into what decides whether Nova tries another node."""
    try:
        yield
    except errors.DeployInvalid as exc:
        raise nova_exception.BuildAbortException(
            instance_uuid=instance.uuid, reason=str(exc)
        ) from exc
    except Cancelled as exc:
        raise nova_exception.UnexpectedDeletingTaskStateError(
            instance_uuid=instance.uuid,
            expected={'task_state': [task_states.SPAWNING]},
            actual={'task_state': [task_states.DELETING]},
        ) from exc
    except errors.IronicComputeError as exc:
        raise nova_exception.InstanceDeployFailure(str(exc)) from exc
