# SPDX-License-Identifier: Apache-2.0
"""What an operator reads of a node that is moved, pinned or unpinned."""

import getpass
import types
from typing import Any

import oslo_messaging
import pytest

from hashring.ring import Host
from ironic_compute.cmd import ctl, node_moves
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.pins import Pin
from ironic_compute.ownership import peer_rpc
from ironic_compute.ownership.node_moves import MoveResult, UnpinResult
from resource_tracker.node import NodeId

C2, N1 = Host('c2'), NodeId('n1')
PIN = Pin(C2, 'ann')


class Nova:
    """Nova's row of the node, and the worker of its holder.

    :param answer: the worker's answer, or the error of the request
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.answer: Any = None
        self.rows: dict[str, Any] = {N1: types.SimpleNamespace(host='c1')}
        self.asked: list[Any] = []
        nodes: Any = ComputeNodes
        patch.setattr(nodes, 'list_by_nodes', lambda rows, some: self.rows)
        patch.setattr(nodes, 'read_by_name', lambda rows, node: None)
        patch.setattr(peer_rpc, '_request', self._request)

    def _request(self, to: Host, name: str, *_: Any, **arguments: Any) -> Any:
        self.asked.append((to, name, arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        return {
            field: getattr(self.answer, field)
            for field in self.answer.__slots__
        }

    def move(self, *, is_dry_run: bool = False) -> str:
        """Move the node to host c2."""
        return node_moves.move_node(
            N1, PIN, replaces=False, is_dry_run=is_dry_run
        )


@pytest.fixture
def nova(monkeypatch: pytest.MonkeyPatch) -> Nova:
    """Host c1 holds the node."""
    return Nova(monkeypatch)


@pytest.mark.parametrize(
    ('result', 'would', 'done'),
    [
        (
            MoveResult('c1', 's1'),
            'Node n1 with server s1 would move from host c1 to host c2, and '
            'would be pinned there',
            'Node n1 with server s1 moved from host c1 to host c2, and is '
            'pinned there',
        ),
        (
            MoveResult('c1'),
            'Node n1 would be pinned to host c2, and would move there from '
            'host c1 within seconds',
            'Node n1 is pinned to host c2, and moves there from host c1 '
            'within seconds',
        ),
        (
            MoveResult('c2'),
            'Node n1 is at host c2, and would be pinned there',
            'Node n1 is at host c2, and is pinned there',
        ),
    ],
)
def test_result_of_a_move_is_a_sentence(
    nova: Nova, result: MoveResult, would: str, done: str
) -> None:
    """A dry run says what the run does."""
    nova.answer = result
    assert nova.move(is_dry_run=True) == would
    assert nova.move() == done
    assert [(to, name) for to, name, _ in nova.asked] == [
        ('c1', 'move_node')
    ] * 2


def test_unpinned_node_has_a_target(nova: Nova) -> None:
    """The sentence says where the node is, and where it goes."""
    nova.answer = UnpinResult('c2', 'c2', 'c1')
    assert node_moves.unpin_node(N1) == (
        'Node n1 is not pinned to host c2 any more; it is at host c2, and '
        'the hash ring names c1'
    )
    nova.answer = UnpinResult('c2', None, 'c1')
    assert node_moves.unpin_node(N1) == (
        'Node n1 is not pinned; nothing was changed'
    )


@pytest.mark.parametrize(
    ('answer', 'sentence'),
    [
        (oslo_messaging.MessagingTimeout(), 'does not answer; .*It may still'),
        (
            oslo_messaging.RemoteError('UnsupportedVersion'),
            'older release, which cannot pin',
        ),
        (oslo_messaging.UnsupportedVersion('1.5'), 'is of an older release'),
        (UnpinResult('c1', why_not='because'), '^because$'),
    ],
)
def test_refusal_is_one_sentence(
    nova: Nova, answer: Any, sentence: str
) -> None:
    """The same for both commands."""
    nova.answer = answer
    with pytest.raises(NovaRefused, match=sentence):
        node_moves.unpin_node(N1)
    if isinstance(answer, UnpinResult):
        nova.answer = MoveResult('c1', why_not='because')
    with pytest.raises(NovaRefused, match=sentence):
        nova.move()


@pytest.mark.parametrize(
    ('answer', 'sentence'),
    [
        (
            oslo_messaging.MessagingTimeout(),
            'does not answer; .*It may still remove',
        ),
        (
            oslo_messaging.RemoteError('UnsupportedVersion', 'no', ['Trace']),
            '^Host c1 holds node n1, and no ironic-compute serves it$',
        ),
        (
            oslo_messaging.RemoteError('DBError', 'away', ['Trace']),
            r'has failed \(DBError: away\), so what',
        ),
    ],
)
def test_records_that_are_not_removed(
    nova: Nova,
    monkeypatch: pytest.MonkeyPatch,
    answer: Exception,
    sentence: str,
) -> None:
    """The sentence says who did not do it, without a traceback."""

    class Client:
        """The client of the holder's queue."""

        def call(self, *_: Any, **_arguments: Any) -> None:
            """Answer nothing."""
            raise answer

    monkeypatch.setattr('nova.rpc.get_client', lambda target: Client())
    with pytest.raises(NovaRefused, match=sentence):
        ctl.forget_node(N1)


def test_node_without_a_record_is_refused(nova: Nova) -> None:
    """Nobody holds it, so nobody could write."""
    nova.rows.clear()
    for act in (nova.move, lambda: node_moves.unpin_node(N1)):
        with pytest.raises(NovaRefused, match='Nova has no record of node n1'):
            act()
    assert not nova.asked


def test_caller_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under sudo it is that of the person; a container may have none."""
    monkeypatch.setenv('SUDO_USER', 'ann')
    caller = node_moves.describe_caller(0.0)
    assert caller.startswith('ann on ')
    assert caller.endswith(' at 1970-01-01 00:00 UTC')
    monkeypatch.delenv('SUDO_USER')

    def fail() -> str:
        raise KeyError(0)

    monkeypatch.setattr(getpass, 'getuser', fail)
    assert node_moves.describe_caller(0.0)[0].isdigit()
