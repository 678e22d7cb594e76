# SPDX-License-Identifier: Apache-2.0
"""Ironic begins a deploy once, although its answers are lost for a while."""

from typing import Any

import pytest

from ironic_compute import errors

from . import fake, timed

# Ironic deploys the node while its API is away, for instance with fast-track
# deploys or if an operator has Ironic's requests repeated for longer.
_WORK_S = 60.0
_AWAY_S = 90.0


def _lose_answers(bench: timed.TimedBench) -> None:
    """Let Ironic's API go away as soon as it has accepted a request."""
    ironic: Any = bench.ironic
    until_s = 0.0

    def is_away() -> bool:
        return bench.clock.now_s() < until_s

    send, read = ironic.set_provision_state, ironic.read_node

    def lose(*args: Any, **arguments: Any) -> None:
        nonlocal until_s
        if is_away():
            raise errors.IronicNotReached('connection refused')
        is_first = not ironic.begun
        send(*args, **arguments)
        if is_first:
            until_s = bench.clock.now_s() + _AWAY_S
            raise errors.IronicUnavailable('no answer')

    def fail(node: str) -> Any:
        if is_away():
            raise errors.IronicNotReached('connection refused')
        return read(node)

    ironic.set_provision_state, ironic.read_node = lose, fail


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Ironic deploy within the time for which requests are repeated."""
    monkeypatch.setattr(timed, 'WORK_S', _WORK_S)


def test_server_that_was_built_meanwhile_is_kept() -> None:
    """The repeated request is refused, because the node is active by now."""
    bench = timed.bench()
    _lose_answers(bench)
    bench.spawn(fake.unsaved_server())
    assert bench.ironic.begun == ['active']
    assert bench.ironic.nodes[fake.NODE].instance_uuid == fake.SERVER


def test_server_that_was_rebuilt_meanwhile_is_not_rebuilt_again() -> None:
    """Ironic would carry a repeated request out, and wipe the disk again."""
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state='active')
    _lose_answers(bench)
    bench.rebuild(fake.unsaved_server(task_state='rebuilding'))
    assert bench.ironic.begun == ['rebuild']


@pytest.mark.parametrize('state', ['active', 'deploy failed'])
def test_rebuild_that_was_not_begun_is_requested_again(state: str) -> None:
    """The state of the node alone does not show that it was."""
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state=state)
    send, answers = bench.ironic.set_provision_state, []

    def lose(*args: Any, **arguments: Any) -> None:
        answers.append(args)
        if len(answers) == 1:
            raise errors.IronicUnavailable('no answer')
        send(*args, **arguments)

    ironic: Any = bench.ironic
    ironic.set_provision_state = lose
    bench.rebuild(fake.unsaved_server(task_state='rebuilding'))
    assert ironic.begun == ['rebuild']
