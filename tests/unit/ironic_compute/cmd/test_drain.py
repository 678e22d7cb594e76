# SPDX-License-Identifier: Apache-2.0
"""An operator's order to empty a host, and what is said meanwhile."""

import argparse
import dataclasses
import types
from typing import Any

import oslo_messaging
import pytest

from hashring.group import Boot, Member
from hashring.ring import Host
from ironic_compute.cmd import drain
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.ownership.drain_order import DrainOrder
from ironic_compute.ownership.move_plan import PlannedMove
from tests.fakes.clock import ManualClock

C1 = Host('c1')
FREE = PlannedMove('n1', None, 'c2')
BUSY = PlannedMove('n2', 's2', 'c2', 'Server s2 has task rebuilding')


def _record(reason: str | None, *, disabled: bool = True) -> Any:
    return types.SimpleNamespace(disabled=disabled, disabled_reason=reason)


DRAINING = _record(DrainOrder().reason())


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
        (
            oslo_messaging.MessagingTimeout(),
            'No daemon serves host c1, .* carried out all the same',
        ),
        (
            oslo_messaging.RemoteError('UnsupportedVersion'),
            'is of an older release',
        ),
        (oslo_messaging.UnsupportedVersion('1.3'), 'is of an older release'),
        (
            oslo_messaging.RemoteError('MessagingTimeout', 'no reply'),
            r'has failed \(MessagingTimeout: no reply\), so what was',
        ),
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

    sentences = drain.wait_until_empty(
        C1, read_plan, lambda host: DRAINING, ManualClock()
    )
    assert list(sentences) == [
        'Host c1 has 2 nodes left, 1 of them with a server. Server s2 has '
        'task rebuilding',
        'No daemon serves host c1, or it does not answer; see '
        '"ironic-computectl host list"',
        'Host c1 has 1 nodes left, 1 of them with a server. Server s2 has '
        'task rebuilding',
    ]


@pytest.mark.parametrize(
    ('record', 'reason'),
    [
        (_record(None, disabled=False), 'is not drained any more'),
        (_record('a new disk'), 'is not drained any more'),
        (None, 'has no Service record of host c1 any more'),
    ],
)
def test_waiting_ends_when_somebody_has_ended_the_drain(
    record: Any, reason: str
) -> None:
    """The nodes stay, or nobody answers for the host: that has no end."""
    records = [DRAINING, record]
    sentences = drain.wait_until_empty(
        C1, lambda host: [BUSY], lambda host: records.pop(0), ManualClock()
    )
    assert next(sentences).startswith('Host c1 has 1 nodes left')
    with pytest.raises(NovaRefused, match=reason):
        next(sentences)


def test_waiting_ends_when_a_host_to_be_retired_is_empty() -> None:
    """Another operator has given that order meanwhile."""
    sentences = drain.wait_until_empty(
        C1, lambda host: [], lambda host: RETIRING, ManualClock()
    )
    assert not list(sentences)


def test_nodes_that_do_not_wait_have_no_reason() -> None:
    """They are moved in the next round."""
    assert drain.describe(C1, [FREE]) == (
        'Host c1 has 1 nodes left, 0 of them with a server'
    )


RETIRING = _record(DrainOrder(retires=True).reason())


def _wait(records: list[Any], plans: list[Any]) -> list[str]:
    def answer(answers: list[Any]) -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    sentences = drain.wait_until_retired(
        C1, lambda to: answer(plans), lambda to: answer(records), ManualClock()
    )
    return list(sentences)


def test_waiting_ends_when_nova_has_no_service() -> None:
    """Errors are waited out; an empty host is not gone yet."""
    silence = oslo_messaging.MessagingTimeout()
    error = oslo_messaging.RemoteError('DBConnectionError', 'is away')
    records = [RETIRING, RETIRING, silence, error, RETIRING, RETIRING, None]
    assert _wait(records, [[BUSY], [BUSY], [], silence]) == [
        'Host c1 has 1 nodes left, 1 of them with a server. Server s2 has '
        'task rebuilding',
        'nova-conductor does not answer',
        'nova-conductor has failed (DBConnectionError)',
        'Host c1 is empty, and is retired in two minutes at most',
        'No daemon serves host c1, or it does not answer; see '
        '"ironic-computectl host list"',
    ]


@pytest.mark.parametrize(
    'record',
    [
        _record(None, disabled=False),
        _record('x'),
        _record(DrainOrder().reason()),
    ],
)
def test_waiting_ends_when_somebody_has_ended_the_order(record: Any) -> None:
    """The command would else wait for ever."""
    with pytest.raises(NovaRefused, match='not to be retired any more'):
        _wait([RETIRING, record], [[BUSY]])


def test_last_daemon_is_not_retired() -> None:
    """It would end, and nobody would serve the nodes."""
    one, other = Member(C1, Boot('1')), Member(Host('c2'), Boot('2'))
    drain.check_others_are_up(C1, [one, other])
    with pytest.raises(NovaRefused, match='No daemon of another host is up'):
        drain.check_others_are_up(C1, [one])


def test_host_of_another_pool_is_not_retired() -> None:
    """Who is up in its own pool is not known here."""
    members = [Member(Host('c2'), Boot('2')), Member(Host('c3'), Boot('3'))]
    with pytest.raises(NovaRefused, match='this pool, which has: c2, c3'):
        drain.check_others_are_up(C1, members)
    with pytest.raises(NovaRefused, match='which has: none, as no daemon'):
        drain.check_others_are_up(C1, [])


def test_undrain_says_whether_the_host_is_enabled() -> None:
    """It was disabled before the drain, or was not."""
    assert drain.describe_state(C1, _record(None, disabled=False)) == (
        'Host c1 is enabled.'
    )
    assert drain.describe_state(C1, _record('a new disk')) == (
        'Host c1 is not drained any more, and disabled as before, with the '
        'reason a new disk.'
    )


def test_undrain_is_done_if_the_state_cannot_be_read() -> None:
    """The order was carried out, so it is no failure."""
    away = NovaRefused('nova-conductor does not answer')
    assert drain.describe_state(C1, away) == (
        'Host c1 is not drained any more. Whether it is enabled is not '
        'known: nova-conductor does not answer.'
    )


def test_server_on_no_node_is_shown() -> None:
    """It counts as no node."""
    lost = PlannedMove('', 's3', None, 'Server s3 is on no node')
    assert drain.rows([lost]) == [('-', 's3', '-', 'Server s3 is on no node')]
    assert drain.describe(C1, [lost]) == (
        'Host c1 has 0 nodes left, 0 of them with a server. Server s3 is on '
        'no node'
    )


def test_empty_host_that_waits_is_not_counted() -> None:
    """The sentence of its worker says what it waits for."""
    wait = PlannedMove('', None, None, 'It waits for its own daemon')
    assert drain.rows([wait]) == [
        ('-', '-', '-', 'It waits for its own daemon')
    ]
    assert _wait([RETIRING, None], [[wait]]) == [
        'Host c1 is empty. It waits for its own daemon'
    ]


def test_retirement_that_will_wait_is_announced() -> None:
    """The own daemon is up, and another one serves the host."""
    own = Member(C1, Boot('1'), machine='m1')
    other = Member(Host('c2'), Boot('2'), serving=(C1, Host('c2')))
    sentence = drain.describe_absence(C1, [other, own]) or ''
    assert sentence.startswith('The daemon of host c1 on m1 is up, and does')
    serving = dataclasses.replace(own, serving=(C1,))
    assert drain.describe_absence(C1, [other, serving]) is None
    assert drain.describe_absence(C1, [other]) is None


@pytest.mark.parametrize('text', ['0', '-1', 'ten', '1.5'])
def test_limit_that_is_no_number_is_named(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the function that parses it."""
    parser = argparse.ArgumentParser()
    drain.add_move_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f'--limit={text}'])
    assert (
        f'--limit: {text} is not a whole number of 1 or more'
        in capsys.readouterr().err
    )
