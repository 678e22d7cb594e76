# SPDX-License-Identifier: Apache-2.0
"""Who is scheduled anew, and how often."""

from typing import Any

import pytest
from nova.conductor import api

from ironic_compute.manager.rescheduling import LOSSES_MAX, FreshCandidates

LOST = 'nova.exception.ComputeResourcesUnavailable: node n1 is in use by s2'
FAILED = 'nova.exception.InstanceDeployFailure: the disk is broken'


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The host lists that the conductor gets."""
    lists: list[Any] = []
    monkeypatch.setattr(
        api.ComputeTaskAPI,
        'build_instances',
        lambda *args, **kwargs: lists.append(kwargs['host_lists']),
    )
    return lists


def _reschedule(properties: dict[str, Any]) -> None:
    client: Any = object.__new__(FreshCandidates)
    client.build_instances(
        None, ['s1'], 'image', properties, 'password', host_lists=[['a']]
    )


def _properties(line: str) -> dict[str, Any]:
    return {'retry': {'num_attempts': 1, 'exc': ['Traceback', line]}}


def test_loser_of_a_node_gets_fresh_candidates(sent: list[Any]) -> None:
    """The loss is not counted as an attempt."""
    properties = _properties(LOST)
    _reschedule(properties)
    assert sent == [None]
    assert properties['retry']['num_attempts'] == 0


def test_other_failures_get_their_alternates(sent: list[Any]) -> None:
    """Such a failure counts, as in Nova."""
    properties = _properties(FAILED)
    _reschedule(properties)
    assert sent == [[['a']]]
    assert properties['retry']['num_attempts'] == 1


def test_losses_without_end_are_counted(sent: list[Any]) -> None:
    """A node that Placement offers and no build can have ends the build."""
    properties = _properties(LOST)
    properties['retry']['num_attempts'] = LOSSES_MAX + 1
    for _ in range(LOSSES_MAX + 1):
        _reschedule(properties)
    assert properties['retry']['num_attempts'] == 1
