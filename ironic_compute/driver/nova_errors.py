# SPDX-License-Identifier: Apache-2.0
"""Translation of our errors into Nova's exceptions, and the driver's errors.

Inside the driver, only subclasses of ``IronicComputeError`` are raised. Each
driver method that Nova calls runs in one of the two contexts below, which
raise Nova's exception in their place. Exceptions of Neutron or of Nova's
database pass unchanged, because Nova handles them.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from nova import exception as nova_exception
from nova.compute import task_states

from ironic_compute import errors

_CONNECTION = re.compile(r':? *HTTPS?Connection.*', re.DOTALL)
_URL = re.compile(r"""\b[a-z][a-z+]*://[^\s'"<>),]*""")


class NoNode(errors.IronicComputeError):
    """Ironic has no node with this server on it."""


class Cancelled(errors.IronicComputeError):
    """The user deleted the server while it was being built."""


class PowerFailed(errors.IronicComputeError):
    """A power action ended, but not in the requested power state."""


@contextlib.contextmanager
def as_nova_errors(
    instance: Any, failure: type[Exception] | None = None
) -> Iterator[None]:
    """Raise Nova's exceptions in place of ours.

    :param instance: Nova's Instance; may be None if ``failure`` is given
    :param failure: the exception class that Nova documents for the operation;
        None: :func:`to_nova` selects the class
    """
    try:
        yield
    except NoNode as exc:
        raise nova_exception.InstanceNotFound(
            instance_id=instance.uuid
        ) from exc
    except errors.IronicComputeError as exc:
        if failure is None:
            raise to_nova(exc, instance) from exc
        raise _new(failure, without_urls(str(exc))) from exc


@contextlib.contextmanager
def as_nova_build_errors(instance: Any) -> Iterator[None]:
    """Raise Nova's exceptions of a build or rebuild in place of ours.

    Nova tries another node after InstanceDeployFailure, and ends the build
    after BuildAbortException (bug 2127087).
    """
    try:
        yield
    except errors.DeployInvalid as exc:
        raise to_nova(exc, instance) from exc
    except Cancelled as exc:
        raise nova_exception.UnexpectedDeletingTaskStateError(
            instance_uuid=instance.uuid,
            expected={'task_state': [task_states.SPAWNING]},
            actual={'task_state': [task_states.DELETING]},
        ) from exc
    except errors.RebuildRefused as exc:
        # Nova then leaves the server in its former state.
        raise nova_exception.InstanceFaultRollback(
            to_nova(exc, instance)
        ) from exc
    except errors.IronicComputeError as exc:
        raise nova_exception.InstanceDeployFailure(
            without_urls(str(exc))
        ) from exc


def to_nova(exc: errors.IronicComputeError, instance: Any = None) -> Exception:
    """Return Nova's exception with the meaning and the text of ``exc``."""
    uuid, text = getattr(instance, 'uuid', '-'), without_urls(str(exc))
    match exc:
        case errors.DeployInvalid():
            return nova_exception.BuildAbortException(
                instance_uuid=uuid, reason=text
            )
        case errors.NodeNotFound():
            return nova_exception.InstanceNotFound(instance_id=uuid)
        case errors.TeardownFailed():
            return nova_exception.NovaException(text)
        case _:
            return nova_exception.InstanceDeployFailure(text)


def without_urls(text: str) -> str:
    """Return a text that tenants may read, without internal addresses.

    keystoneauth1 puts the URL and the connection into its errors. The log has
    them nevertheless, because Nova logs the cause of an exception.
    """
    return _URL.sub('its URL', _CONNECTION.sub('', text))


def _new(failure: Any, reason: str) -> Exception:
    """Return a Nova exception whose text is, or contains, the reason."""
    has_reason = '%(reason)' in failure.msg_fmt
    return failure(reason=reason) if has_reason else failure(reason)
