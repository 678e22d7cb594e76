# SPDX-License-Identifier: Apache-2.0
"""Ironic begins a deploy once, although its answers are lost for a while."""

import contextlib
import threading
from typing import Any

import pytest
from nova import exception as nova_exception

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


def _deploy_others(bench: timed.TimedBench, until_s: float) -> list[float]:
    """Let Ironic have too many deploys; return the times of the requests."""
    ironic: Any = bench.ironic
    send, times = ironic.set_provision_state, []

    def refuse(node: str, target: str, **arguments: Any) -> None:
        times.append(bench.clock.now_s())
        if target != 'deleted' and bench.clock.now_s() < until_s:
            raise errors.AtLimit('concurrent action limit', 503)
        send(node, target, **arguments)

    ironic.set_provision_state = refuse
    return times


def test_build_waits_until_ironic_has_ended_other_deploys() -> None:
    """Ironic begins no deploy while 250 nodes are deployed (its default).

    Further builds failed on each of their nodes after two minutes.
    """
    bench = timed.bench()
    begins_s = bench.clock.now_s() + 3600.0
    times_s = _deploy_others(bench, begins_s)
    bench.spawn(fake.unsaved_server())
    assert bench.ironic.begun == ['active']
    assert times_s[-1] < begins_s + 60.0
    # The others should not be delayed by the requests of those that wait.
    assert len(times_s) < 300


def test_build_that_waits_for_other_deploys_ends_with_its_server() -> None:
    """The user deletes it, and its build sends no request any more."""
    bench = timed.bench()
    times_s = _deploy_others(bench, bench.clock.now_s() + 3600.0)
    server = fake.unsaved_server()

    def delete() -> None:
        server.task_state = 'deleting'

    object.__setattr__(server, 'refresh', delete)
    with pytest.raises(nova_exception.UnexpectedDeletingTaskStateError):
        bench.spawn(server)
    assert len(times_s) < 30
    assert bench.is_free()


def test_build_that_waits_for_other_deploys_delays_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stop of the worker waited for it, and a delete for half a minute.

    The stop need not wait, because the next worker gets the message.
    """
    bench = timed.bench()
    begun_s, sleep = bench.clock.now_s(), bench.clock.sleep
    _deploy_others(bench, begun_s + 3600.0)
    deleted_s: list[float] = []
    listed: list[frozenset[int]] = []

    def sleep_and_delete(seconds: float) -> None:
        sleep(seconds)
        listed.append(bench.driver.list_waiting_threads())
        if bench.clock.now_s() - begun_s > 100.0 and not deleted_s:
            deleted_s.append(bench.clock.now_s())
            cancelled.enter_context(bench.driver.cancel_build(fake.SERVER))

    monkeypatch.setattr(bench.clock, 'sleep', sleep_and_delete)
    with (
        contextlib.ExitStack() as cancelled,
        pytest.raises(nova_exception.UnexpectedDeletingTaskStateError),
    ):
        bench.spawn(fake.unsaved_server())
    assert bench.clock.now_s() - deleted_s[0] < 2.0
    assert set(listed) == {frozenset({threading.get_ident()})}
    assert bench.is_free()


def test_rebuild_does_not_wait_for_other_deploys() -> None:
    """It is refused while its server is as it was."""
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state='active')
    _deploy_others(bench, bench.clock.now_s() + 3600.0)
    with pytest.raises(nova_exception.InstanceFaultRollback):
        bench.rebuild(fake.unsaved_server(task_state='rebuilding'))
