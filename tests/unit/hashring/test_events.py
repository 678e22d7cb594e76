# SPDX-License-Identifier: Apache-2.0
"""Events and effects: values that do not change and can be compared."""

import dataclasses
import typing

import pytest

from hashring import events
from hashring.ring import Host

KINDS = typing.get_args(events.Event) + typing.get_args(events.Effect)


@pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.__name__)
def test_every_event_and_effect_is_frozen(kind: type) -> None:
    """No thread can change an event or an effect after it was made."""
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_equal_effects_are_equal_values() -> None:
    """Two lock requests are equal if they have the same host and ticket."""
    first = events.TryLock(Host('c1'), 1)
    assert first == events.TryLock(Host('c1'), 1)
    assert first != events.TryLock(Host('c1'), 2)


def test_every_reason_has_a_text_of_its_own() -> None:
    """Two reasons with one text would be the same reason in the log."""
    assert len(events.Why) == len(events.Why.__members__)


def test_lease_status_of_an_agent_without_a_lease_has_no_members() -> None:
    """By default the status has no view, no lost lock, and no time of it."""
    status = events.LeaseStatus(0.0, 0)
    assert status.view.members == ()
    assert status.lost == frozenset()
    assert status.read_at_s == 0.0
