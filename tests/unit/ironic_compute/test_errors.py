# SPDX-License-Identifier: Apache-2.0
"""The error classes: which of them allow a retry."""

from ironic_compute import errors


def test_only_what_may_pass_is_retriable():
    """A locked node or an unavailable Ironic allows a retry."""
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.Retriable)
        and issubclass(kind, errors.IronicComputeError)
    }
    assert kinds == {
        errors.NodeLocked,
        errors.IronicUnavailable,
        errors.IronicNotReached,
    }
    untouched = {kind for kind in kinds if issubclass(kind, errors.Untouched)}
    assert untouched == {errors.NodeLocked, errors.IronicNotReached}
