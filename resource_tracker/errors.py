# SPDX-License-Identifier: Apache-2.0
"""Errors of the resource tracker; foreign ones stop in ``placement``."""


class TrackerError(Exception):
    """Root of all errors of this package."""


class Retriable:
    """Mixin: the same request may succeed later."""


class MalformedNode(TrackerError):
    """A record of Ironic is not what its API reference says.

    :param node: uuid of the node, or what else it may be found by
    :param field: the first field that cannot be read
    """

    def __init__(self, node: str, field: str) -> None:
        super().__init__(
            f"Ironic's record of node {node} has no usable {field}"
        )
        self.node = node
        self.field = field


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


class ProviderExists(PlacementError, Retriable):
    """There is a provider of this uuid or name already (409)."""


class ProviderNotFound(PlacementError, Retriable):
    """There is no such provider (404); it is created by the next try."""


class ProviderInUse(PlacementError, Retriable):
    """The provider has allocations, so it can neither go nor lose them."""


class NameVanished(PlacementError, Retriable):
    """Somebody removed a CUSTOM_ name that we had made before."""


class PlacementUnavailable(PlacementError, Retriable):
    """No answer, or one that says: not now, or not to you, whatever it was."""


class PlacementFailed(PlacementError, Retriable):
    """Placement broke over this very request (500)."""


class PlacementRefused(PlacementError):
    """Placement says that the request is wrong."""
