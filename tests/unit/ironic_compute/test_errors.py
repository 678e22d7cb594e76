# SPDX-License-Identifier: Apache-2.0
"""The error classes: which of them allow a retry."""

from ironic_compute import errors


def test_only_what_may_pass_is_retriable():
    """A shut gate, a locked node, and an Ironic or conductor that is away."""
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.Retriable)
        and issubclass(kind, errors.IronicComputeError)
    }
    assert kinds == {
        errors.GateShut,
        errors.NodeLocked,
        errors.IronicUnavailable,
        errors.IronicNotReached,
        errors.NoConductor,
    }
    untouched = {kind for kind in kinds if issubclass(kind, errors.Untouched)}
    assert untouched == {
        errors.NodeLocked,
        errors.IronicNotReached,
        errors.NoConductor,
    }
