# SPDX-License-Identifier: Apache-2.0
"""Error classes of the daemons; each message is a sentence for operators.

``ironic_api.session`` translates exceptions of ironicclient and keystoneauth1
into these classes; ``driver.nova_errors`` translates them into Nova's
exceptions.
"""

import http

from oslo_config import cfg

# oslo.config raises one of them for a value such as ``pass$word``.
UNKNOWN_REFERENCE = (
    cfg.NoSuchOptError,
    cfg.NoSuchGroupError,
    cfg.TemplateSubstitutionError,
)
# In place of the text of such an error, which has a part of the value.
REFERENCE_CURE = (
    'it refers with $ to an option that does not exist; write $$ for a $'
)
# In place of a RecursionError: oslo.config looks in the option's own group
# first, so "state_path = $state_path/ironic" refers to itself, not to Nova's.
SELF_REFERENCE_CURE = (
    'it refers with $ to itself, not to the option of that name in another '
    'group; write the value out'
)


class IronicComputeError(Exception):
    """Root of all errors of this package."""


class Retriable:
    """Mixin: the same request may succeed later."""


class Untouched(Retriable):
    """Mixin: Ironic did nothing, so any request may be sent again."""


class ConfigError(IronicComputeError):
    """The configuration is wrong; the message has the option and the cure."""


class GateShut(IronicComputeError, Retriable):
    """The lease is not in force, and the request may not wait for it."""


class NodeNotFound(IronicComputeError):
    """Ironic has no such node (404)."""


class NodeLocked(IronicComputeError, Untouched):
    """Another request has locked the node in Ironic (409)."""


class NodeAssociated(IronicComputeError):
    """The node has an instance already (409)."""


class IronicUnavailable(IronicComputeError, Retriable):
    """Ironic did not answer, or answered that it is overloaded.

    :param http_status: the status of Ironic's answer; None without one
    """

    def __init__(self, message: str, http_status: int | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status


class IronicNotReached(IronicUnavailable, Untouched):
    """The request did not reach Ironic, or was refused before processing."""


class NoConductor(IronicNotReached):
    """No conductor of Ironic that is up has the node's driver and group."""


class AtLimit(IronicNotReached):
    """Ironic carries out as many deploys, or cleanings, as it may at once."""


class TooManyChanges(IronicComputeError):
    """More nodes changed lately than the delta list reads.

    :param newest: the newest ``updated_at`` of the nodes that it read
    """

    def __init__(self, newest: str) -> None:
        super().__init__('too many nodes changed lately to list them')
        self.newest = newest


class IronicRefused(IronicComputeError):
    """Ironic refused the request as wrong."""


class IronicForbidden(IronicRefused):
    """The user below ``[ironic]`` lacks a right (403)."""


class DeployFailed(IronicComputeError):
    """Ironic could not deploy the node."""


class DeployInvalid(IronicComputeError):
    """The node or the image cannot be deployed, on this node or another."""


class RebuildRefused(IronicComputeError):
    """A rebuild was refused before it touched the disk of the server."""


class TeardownFailed(IronicComputeError):
    """Ironic could not remove the instance from the node."""


class WaitTimeout(IronicComputeError):
    """A node did not reach the expected state in time."""


class NodeGone(IronicComputeError):
    """Ironic deleted a node while a thread waited for the node."""


def is_node_kept(exc: BaseException) -> bool:
    """Return whether Ironic has answered that a server stays on its node.

    By an error or by its cause. If the machine is broken, each further request
    may end so for months.
    """
    cause = exc if isinstance(exc, IronicComputeError) else exc.__cause__
    return isinstance(cause, TeardownFailed | WaitTimeout | IronicRefused)


def is_ironic_away(exc: BaseException) -> bool:
    """Return whether Ironic did not answer, by an error or by its cause.

    A status 500 may be a refusal, which stays the same however often the
    request is repeated.
    """
    cause = exc if isinstance(exc, IronicComputeError) else exc.__cause__
    return (
        isinstance(cause, IronicUnavailable)
        and cause.http_status != http.HTTPStatus.INTERNAL_SERVER_ERROR
    )
