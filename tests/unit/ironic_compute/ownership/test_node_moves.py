# SPDX-License-Identifier: Apache-2.0
"""An operator's request to move one node."""

import pytest

from hashring.ring import Host
from ironic_compute.ownership.node_moves import MoveResult, NodeMoves
from tests.unit.ironic_compute.ownership.moving import C1, C2, S1, Desk


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Server s1 on a node of c1."""
    return Desk(monkeypatch)


def _moves(desk: Desk) -> NodeMoves:
    return NodeMoves(desk.one.held_nodes, desk.one.pool, desk.evictor)


def test_node_moves_with_its_server(desk: Desk) -> None:
    """The answer names the server and the former host."""
    assert _moves(desk).check(desk.node, C2) == MoveResult(C1, S1)
    assert (desk.server.host, desk.holder) == (C1, C1)
    assert _moves(desk).move(desk.node, C2) == MoveResult(C1, S1)
    assert (desk.server.host, desk.holder) == (C2, C2)


def test_refusal_is_an_answer(desk: Desk) -> None:
    """The operator reads the sentence of the worker."""
    desk.server.task_state = 'rebooting'
    for act in (_moves(desk).check, _moves(desk).move):
        result = act(desk.node, C2)
        assert result.server is None
        assert 'has task rebooting' in (result.why_not or '')
    assert (desk.server.host, desk.holder) == (C1, C1)


@pytest.mark.parametrize(
    ('ring', 'sentence'),
    [
        (('c2',), 'moves to host c2 by itself'),
        (('c1',), 'which is c1; only a node with a server'),
    ],
)
def test_ring_decides_the_host_of_a_free_node(
    desk: Desk, ring: tuple[str, ...], sentence: str
) -> None:
    """It would be pushed back at once."""
    desk.cloud.show(*ring)
    result = _moves(desk).move(desk.free, C2)
    assert sentence in (result.why_not or '')
    assert not desk.writes


def test_node_that_is_not_held_is_refused(desk: Desk) -> None:
    """It was given away since the command read its holder."""
    desk.one.held_nodes.drop_node(desk.node)
    result = _moves(desk).move(desk.node, Host('c2'))
    assert 'does not hold' in (result.why_not or '')
