# SPDX-License-Identifier: Apache-2.0
"""Comparison of two rings, for tests."""

from collections.abc import Iterable

from hashring.ring import Host, Ring


def moves(
    old: Ring, new: Ring, nodes: Iterable[str]
) -> dict[str, tuple[Host | None, Host | None]]:
    """Return the nodes whose target differs between two rings.

    :returns: node -> (old target, new target), only where they differ.
    """
    changed = {}
    for node in nodes:
        before, after = old.target(node), new.target(node)
        if before != after:
            changed[node] = (before, after)
    return changed
