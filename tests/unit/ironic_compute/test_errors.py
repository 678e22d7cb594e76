# SPDX-License-Identifier: Apache-2.0
"""The error classes: which of them allow a retry."""

import pytest

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
        errors.AtLimit,
    }
    untouched = {kind for kind in kinds if issubclass(kind, errors.Untouched)}
    assert untouched == {
        errors.NodeLocked,
        errors.IronicNotReached,
        errors.NoConductor,
        errors.AtLimit,
    }


@pytest.mark.parametrize(
    ('cause', 'is_away'),
    [
        (errors.IronicUnavailable('time-out'), True),
        (errors.IronicUnavailable('too busy', 503), True),
        (errors.NoConductor('none', 404), True),
        (errors.IronicUnavailable('failed', 500), False),
        (errors.NodeNotFound('gone'), False),
        (None, False),
    ],
)
def test_error_tells_whether_ironic_is_away(
    cause: Exception | None, *, is_away: bool
) -> None:
    """Nova's errors have ours as their cause; 500 may be a refusal."""
    of_nova = RuntimeError('of Nova')
    of_nova.__cause__ = cause
    assert errors.is_ironic_away(of_nova) is is_away
    assert cause is None or errors.is_ironic_away(cause) is is_away
