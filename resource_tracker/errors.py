# SPDX-License-Identifier: Apache-2.0
"""Errors of the resource tracker.

``placement`` translates the errors of keystoneauth1 and HTTP into these, so
callers need no other types.
"""


class TrackerError(Exception):
    """Base class of all errors of this package."""


class Retriable:
    """Mixin for errors after which the same request may succeed later."""


class MalformedNode(TrackerError):
    """Ironic's record of a node does not have the documented form.

    :param node: uuid of the node, or else its name or the start of the record
    :param field: name of the first field that cannot be used
    """

    def __init__(self, node: str, field: str) -> None:
        super().__init__(
            f"Ironic's record of node {node} has no usable {field}"
        )
        self.node = node
        self.field = field


class NodeClaimed(TrackerError):
    """A node is claimed already.

    :param node: uuid of the node
    :param consumer: uuid of the server that has claimed it
    """

    def __init__(self, node: str, consumer: str) -> None:
        super().__init__(f'node {node} is claimed by {consumer}')
        self.node = node
        self.consumer = consumer


class PlacementError(TrackerError):
    """A request to Placement failed."""


class GenerationConflict(PlacementError, Retriable):
    """Another client wrote the provider after we read it (409)."""


class ProviderExists(PlacementError, Retriable):
    """A provider with this uuid or name exists already (409)."""


class ProviderNotFound(PlacementError, Retriable):
    """The provider does not exist (404); the next try creates it."""


class ProviderInUse(PlacementError, Retriable):
    """Allocations prevent the deletion of a provider or an inventory (409)."""


class NameVanished(PlacementError, Retriable):
    """Another client deleted a custom trait or class that we had created."""


class PlacementUnavailable(PlacementError, Retriable):
    """Placement did not answer, or refused every request (401, 503, …).

    The cause concerns all nodes, not the node of the request.

    :param retry_after_s: the pause that Placement asked for, in seconds
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PlacementForbidden(PlacementUnavailable):
    """The user below ``[placement]`` lacks a right (403)."""


class PlacementFailed(PlacementError, Retriable):
    """Placement failed while it handled this request (500)."""


class PlacementRefused(PlacementError):
    """Placement refused the request as invalid (400 and other 4xx)."""
