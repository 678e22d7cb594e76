# SPDX-License-Identifier: Apache-2.0
"""An operator's order to empty a host, and what is said meanwhile."""

from typing import Any

import oslo_messaging
import pytest

from hashring.ring import Host
from ironic_compute.cmd import drain
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.ownership.draining import PlannedMove
from tests.fakes.clock import ManualClock

C1 = Host('c1')
FREE = PlannedMove('n1', None, 'c2')
BUSY = PlannedMove('n2', 's2', 'c2', 'Server s2 has task rebuilding')


def test_table_has_a_row_for_each_node() -> None:
    """A dash stands for what is not there."""
    assert drain.rows([FREE, BUSY]) == [
        ('n1', '-', 'c2', '-'),
        ('n2', 's2', 'c2', 'Server s2 has task rebuilding'),
    ]


def test_refusal_of_the_worker_is_shown() -> None:
    """And nothing else is sent."""
    drain.order(C1, lambda host: None)
    with pytest.raises(NovaRefused, match='because c1'):
        drain.order(C1, lambda host: f'because {host}')


@pytest.mark.parametrize(
    ('error', 'sentence'),
    [
        (oslo_messaging.MessagingTimeout(), 'No daemon serves host c1'),
        (oslo_messaging.RemoteError(), 'is of an older release'),
        (oslo_messaging.UnsupportedVersion('1.3'), 'is of an older release'),
    ],
)
def test_host_that_cannot_answer_is_named(
    error: Exception, sentence: str
) -> None:
    """The operator reads where to look."""

    def request(host: Host) -> Any:
        raise error

    with pytest.raises(NovaRefused, match=sentence):
        drain.order(C1, request)


def test_waiting_says_each_change_once() -> None:
    """A daemon that is away for a while is waited for."""
    answers: list[Any] = [
        [FREE, BUSY],
        [FREE, BUSY],
        oslo_messaging.MessagingTimeout(),
        [BUSY],
        [],
    ]

    def read_plan(host: Host) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = ManualClock()
    assert list(drain.wait_until_empty(C1, read_plan, clock)) == [
        'Host c1 has 2 nodes left, 1 of them with a server. Server s2 has '
        'task rebuilding',
        'No daemon serves host c1, or it does not answer; see '
        '"ironic-computectl host list"',
        'Host c1 has 1 nodes left, 1 of them with a server. Server s2 has '
        'task rebuilding',
    ]


def test_nodes_that_do_not_wait_have_no_reason() -> None:
    """They are moved in the next round."""
    assert drain.describe(C1, [FREE]) == (
        'Host c1 has 1 nodes left, 0 of them with a server'
    )
