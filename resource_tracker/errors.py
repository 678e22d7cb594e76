# SPDX-License-Identifier: Apache-2.0
"""Errors of the resource tracker; foreign ones stop in ``placement``."""


class TrackerError(Exception):
    """Root of all errors of this package."""


class Retriable:
    """Mixin: the same request may succeed later."""


class MalformedNode(TrackerError):
    """A record of Ironic lacks what every node has."""


class NodeClaimed(TrackerError):
    """A node has a consumer already.

    :param node: uuid of the node
    :param consumer: who has it
    """

    def __init__(self, node: str, consumer: str) -> None:
        super().__init__(f'node {node} is claimed by {consumer}')
        self.node = node
        self.consumer = consumer


class PlacementError(TrackerError):
    """Placement did not do what it was asked."""


class GenerationConflict(PlacementError, Retriable):
    """Somebody wrote this provider after we read it (409)."""


class ProviderInUse(PlacementError):
    """The provider has allocations, so it can neither go nor lose them."""


class ProviderNotFound(PlacementError, Retriable):
    """There is no such provider (404); it is created by the next try."""


class PlacementUnavailable(PlacementError, Retriable):
    """No answer, or one that says: later."""


class PlacementRefused(PlacementError):
    """Placement says that the request is wrong."""
