# SPDX-License-Identifier: Apache-2.0
"""The view that an agent sends to its workers, and the workers' events."""

import dataclasses
import json
import typing

import pytest

from hashring import workers
from hashring.ring import Host

C1 = Host('c1')
VIEW = workers.WorkerView(12.0, (C1,), None, (C1,), opens_s={C1: 20.0})


def test_view_can_be_written_as_json() -> None:
    """Every field of a view survives JSON; a tuple becomes a list."""
    raw = json.loads(json.dumps(dataclasses.asdict(VIEW)))
    assert raw == {
        'deadline_s': 12.0,
        'ring': ['c1'],
        'agreed_since_s': None,
        'known': ['c1'],
        'agreed_until_s': 0.0,
        'opens_s': {'c1': 20.0},
        'confirmed_mappings': [],
        'doubted_paths': [],
        'member_homes': [],
    }


@pytest.mark.parametrize(
    'kind',
    typing.get_args(workers.WorkerEvent),
    ids=lambda kind: kind.__name__,
)
def test_every_event_of_a_worker_is_frozen(kind: type) -> None:
    """The agent's main thread takes events that another thread has made."""
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    'event', [workers.WorkerServing(C1), workers.WorkerExited(C1, 0)]
)
def test_event_without_a_tenure_is_of_the_present_worker(
    event: workers.WorkerServing | workers.WorkerExited,
) -> None:
    """Tenure 0 stands for the present tenure of the host."""
    assert event.tenure == 0
