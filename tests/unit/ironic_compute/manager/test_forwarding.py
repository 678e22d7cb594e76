# SPDX-License-Identifier: Apache-2.0
"""Where a message goes on to, and how often."""

import types
from typing import Any

import pytest
from nova import exception as nova_exception
from nova import objects

from ironic_compute.manager import forwarding
from ironic_compute.manager.forwarding import HOPS, HOPS_MAX


@pytest.mark.parametrize(
    ('holder', 'hops_count', 'host'),
    [
        ('c2', 0, 'c2'),
        ('c2', HOPS_MAX - 1, 'c2'),
        ('c2', HOPS_MAX, None),
        ('c1', 0, None),
        (None, 0, None),
        ('', 0, None),
    ],
)
def test_next_hop(
    holder: str | None, hops_count: int, host: str | None
) -> None:
    """A message goes to another host, three times at most."""
    assert forwarding.next_hop(holder, 'c1', hops_count) == host


def test_hops_are_counted_in_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next host sees how often the build was forwarded."""
    monkeypatch.setattr(
        objects.ComputeNode,
        'get_by_nodename',
        lambda context, node: types.SimpleNamespace(host='c2'),
    )
    properties: dict[str, Any] = {}
    assert not forwarding.is_forwarded(properties)
    hosts = [
        forwarding.next_host(None, 'n1', 'c1', properties)
        for _ in range(HOPS_MAX + 1)
    ]
    assert hosts == ['c2'] * HOPS_MAX + [None]
    assert properties == {HOPS: HOPS_MAX}
    assert forwarding.is_forwarded(properties)


def test_node_without_a_row_has_no_other_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim refuses the build then."""

    def read(context: Any, node: str) -> Any:
        raise nova_exception.ComputeHostNotFound(host=node)

    monkeypatch.setattr(objects.ComputeNode, 'get_by_nodename', read)
    assert forwarding.next_host(None, 'n1', 'c1', {}) is None
    assert not forwarding.is_forwarded(None)


def test_a_build_for_another_node_is_forwarded_as_a_new_one() -> None:
    """Three hops are allowed for each node."""
    properties: dict[str, Any] = {'limits': {}}
    counted = [forwarding.count_hop(properties) for _ in range(HOPS_MAX + 1)]
    assert counted == [True] * HOPS_MAX + [False]
    forwarding.restart_hops(properties)
    assert properties == {'limits': {}}
