# SPDX-License-Identifier: Apache-2.0
"""Rescue and unrescue of servers."""

import pytest
from nova import exception as nova_exception

from ironic_compute import errors

from . import fake, timed


def test_rescue_and_unrescue():
    """A server enters the state rescue and then is active again."""
    bench = fake.bench_with_server()
    bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)
    assert bench.ironic.nodes[fake.NODE].provision_state == 'rescue'
    bench.driver.unrescue(None, fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


def test_failed_rescue_raises_the_error_of_ironic():
    """The user reads Ironic's error if a rescue fails."""
    bench = fake.bench_with_server()
    bench.ironic.fails['rescue'] = 'rescue failed'
    with pytest.raises(nova_exception.InstanceRescueFailure, match='broken'):
        bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)


@pytest.mark.parametrize(
    ('interface', 'can_rescue'),
    [('agent', True), ('no-rescue', False), (None, False)],
)
def test_rescue_needs_a_rescue_interface(interface, can_rescue):
    """``why_no_rescue`` has a reason for a node without such an interface."""
    bench = fake.bench_with_server()
    bench.ironic.rescue_interface = interface
    reason = bench.driver.why_no_rescue(fake.server())
    assert (reason is None) == can_rescue


def _bench(state, **fields):
    """Return a driver on an Ironic whose node is in a state for a while."""
    return timed.bench(
        instance_uuid=fake.SERVER, provision_state=state, **fields
    )


def _rescue(bench):
    bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)
    assert bench.ironic.nodes[fake.NODE].provision_state == 'rescue'


def _unrescue(bench):
    bench.driver.unrescue(None, fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


# The request, and the state of the node before it.
_CHANGES = [(_rescue, 'active'), (_unrescue, 'rescue')]


@pytest.mark.parametrize('state', ['rescuing', 'rescue wait'])
def test_rescue_that_an_earlier_worker_has_requested_goes_on(state):
    """Ironic refuses a second request while it rescues a node."""
    bench = _bench(state)
    bench.ironic.change_after(60, provision_state='rescue', reservation=None)
    assert bench.driver.is_rescue_begun(fake.server())
    _rescue(bench)
    assert bench.ironic.names() == []


def test_unrescue_that_an_earlier_worker_has_requested_goes_on():
    """The server would end in ERROR although its system boots."""
    bench = _bench('unrescuing')
    bench.ironic.change_after(60, provision_state='active', reservation=None)
    _unrescue(bench)
    assert bench.ironic.names() == []


def test_rescue_of_an_earlier_worker_that_fails_is_not_begun_again():
    """The user reads Ironic's error, as without a restart."""
    bench = _bench('rescuing')
    bench.ironic.change_after(
        60,
        provision_state='rescue failed',
        reservation=None,
        last_error='no heartbeat',
    )
    with pytest.raises(
        nova_exception.InstanceRescueFailure, match='no heartbeat'
    ):
        _rescue(bench)
    assert bench.ironic.names() == []


def test_rescue_that_failed_before_its_message_came_again_is_begun_again():
    """The server would end in ERROR though nobody waited for the rescue."""
    bench = _bench('rescue failed', last_error='no heartbeat')
    assert not bench.driver.is_rescue_begun(fake.server())
    _rescue(bench)
    assert bench.ironic.names() == ['rescue']


@pytest.mark.parametrize(
    'now',
    [
        {'provision_state': 'cleaning', 'instance_uuid': None},
        {'provision_state': 'deleting'},
        {'provision_state': 'active', 'reservation': None},
    ],
)
def test_rescue_ends_when_an_operator_ends_it_in_ironic(now):
    """A delete of the server would else wait for an hour."""
    bench = _bench('rescuing')
    begun_s = bench.clock.now_s()
    bench.ironic.change_after(60, **now)
    state = now['provision_state']
    with pytest.raises(
        nova_exception.InstanceRescueFailure, match=f'which is {state}$'
    ):
        _rescue(bench)
    assert bench.clock.now_s() - begun_s < 600


@pytest.mark.parametrize(('change', 'state'), _CHANGES)
def test_rescue_outlasts_an_outage_that_is_longer_than_its_wait(change, state):
    """The server went to ERROR, although Ironic had done it."""
    bench = _bench(state)
    timed.break_after_change(bench, 5400.0)
    change(bench)
    assert len(bench.ironic.begun) == 1
    assert bench.clock.now_s() >= 5400.0


class _Killed(BaseException):
    """The end of a worker."""


def _kill_at(bench, number, is_done):
    """End the worker before or after its request ``number``; return undo."""
    names = ('read_node', 'read_node_of_instance', 'set_provision_state')
    sent = []

    def killing(send):
        def request(*args, **kwargs):
            sent.append(send)
            if len(sent) <= number:
                return send(*args, **kwargs)
            if is_done:
                send(*args, **kwargs)
            raise _Killed

        return request

    for name in names:
        setattr(bench.ironic, name, killing(getattr(bench.ironic, name)))
    return lambda: [delattr(bench.ironic, name) for name in names]


@pytest.mark.parametrize('pause_s', [0.0, timed.WORK_S / 2, timed.WORK_S * 2])
@pytest.mark.parametrize('is_done', [False, True])
@pytest.mark.parametrize('number', range(5))
@pytest.mark.parametrize(('change', 'state'), _CHANGES)
def test_worker_killed_at_a_request_is_followed_by_one_that_goes_on(
    change, state, number, is_done, pause_s
):
    """The next worker gets the message again; Ironic begins the work once."""
    bench = _bench(state)
    restart = _kill_at(bench, number, is_done)
    with pytest.raises(_Killed):
        change(bench)
    restart()
    bench.clock.advance(pause_s)
    change(bench)
    assert len(bench.ironic.calls) == 1


@pytest.mark.parametrize(('change', 'state'), _CHANGES)
def test_node_that_ironic_locks_for_a_while_is_waited_for(change, state):
    """Ironic's power sync locks a node for half a minute, for instance."""
    bench = _bench(state, reservation='conductor')
    bench.ironic.change_after(30, reservation=None)
    change(bench)
    assert len(bench.ironic.calls) > 1
    assert len(bench.ironic.begun) == 1


@pytest.mark.parametrize(('change', 'state'), _CHANGES)
def test_node_that_stays_locked_is_not_read_at_each_try(change, state):
    """It is read before the first request, and after the last one."""
    bench = _bench(state, reservation='conductor')
    with pytest.raises(nova_exception.NovaException, match='locked'):
        change(bench)
    assert len(bench.ironic.calls) > 5
    assert bench.ironic.reads_count == 2


@pytest.mark.parametrize('work_s', [40, 400])
def test_rescue_of_an_earlier_worker_that_ironic_begins_late_goes_on(work_s):
    """Its request was on its way while the next worker read the node.

    Ironic may hold the lock for longer than requests are repeated.
    """
    bench = _bench('active', reservation='conductor')
    bench.ironic.change_after(3, provision_state='rescuing')
    bench.ironic.change_after(
        work_s, provision_state='rescue wait', reservation=None
    )
    bench.ironic.change_after(work_s * 5, provision_state='rescue')
    _rescue(bench)
    assert bench.ironic.begun == []


@pytest.mark.parametrize('work_s', [40, 400])
def test_unrescue_of_an_earlier_worker_that_ironic_begins_late_goes_on(work_s):
    """Ironic holds the lock until it has ended."""
    bench = _bench('rescue', reservation='conductor')
    bench.ironic.change_after(3, provision_state='unrescuing')
    bench.ironic.change_after(
        work_s, provision_state='active', reservation=None
    )
    _unrescue(bench)
    assert bench.ironic.begun == []


@pytest.mark.parametrize(('change', 'state'), _CHANGES)
def test_request_that_has_reached_ironic_against_all_signs_goes_on(
    change, state
):
    """A connection that is reset counts as one that was not made."""
    bench = _bench(state)
    send = bench.ironic.set_provision_state

    def reset(*args, **kwargs):
        bench.ironic.set_provision_state = send
        send(*args, **kwargs)
        raise errors.IronicNotReached('reset by peer')

    bench.ironic.set_provision_state = reset
    change(bench)
    assert len(bench.ironic.begun) == 1


@pytest.mark.parametrize(('change', 'state'), _CHANGES)
def test_request_without_an_answer_is_not_repeated_before_a_read(
    change, state
):
    """Ironic began it, and then was away for a while."""
    bench = _bench(state)
    send, read = bench.ironic.set_provision_state, bench.ironic.read_node

    def lose(*args, **kwargs):
        send(*args, **kwargs)
        back_s = bench.clock.now_s() + 20
        bench.ironic.read_node = lambda node: fail_until(back_s, node)
        raise errors.IronicUnavailable('bad gateway', 502)

    def fail_until(back_s, node):
        if bench.clock.now_s() < back_s:
            raise errors.IronicUnavailable('bad gateway', 502)
        return read(node)

    bench.ironic.set_provision_state = lose
    change(bench)
    assert len(bench.ironic.calls) == 1


def test_rescue_without_an_answer_that_ironic_begins_late_is_begun_once():
    """Ironic would begin a second rescue when the first one has ended."""
    bench = _bench('active')
    send, tries = bench.ironic.set_provision_state, []

    def lose_first(*args, **kwargs):
        tries.append(args)
        if len(tries) > 1:
            send(*args, **kwargs)
            return
        bench.ironic.change(fake.NODE, reservation='conductor')
        bench.ironic.change_after(
            3, provision_state='rescue', reservation=None
        )
        raise errors.IronicUnavailable('bad gateway', 502)

    bench.ironic.set_provision_state = lose_first
    _rescue(bench)
    assert len(tries) == 2, 'the second one met the lock'
    assert bench.ironic.begun == []


@pytest.mark.parametrize('state', ['active', 'rescue'])
@pytest.mark.parametrize('is_done', [True, False])
def test_request_without_an_answer_is_sent_again_if_it_was_not_done(
    state, is_done
):
    """A load balancer in front of Ironic answers 502, for instance."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state=state)
    send, failures = bench.ironic.set_provision_state, [None]

    def fail_once(*args, **kwargs):
        if failures:
            failures.pop()
            if is_done:
                send(*args, **kwargs)
            raise errors.IronicUnavailable('bad gateway', 502)
        send(*args, **kwargs)

    bench.ironic.set_provision_state = fail_once
    if state == 'active':
        bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)
    else:
        bench.driver.unrescue(None, fake.server())
    assert len(bench.ironic.calls) == 1


@pytest.mark.parametrize(('change', 'state'), _CHANGES)
def test_request_that_ironic_begins_late_goes_on(change, state):
    """Its answer was lost, and Ironic held the lock before it began it.

    The server was in ERROR, and Ironic rescued its node nevertheless.
    """
    bench = _bench(state)
    ironic, send = bench.ironic, bench.ironic.set_provision_state

    def lose(node, *args, **kwargs):
        ironic.set_provision_state = send
        ironic.change(node, reservation='conductor')
        now = {'rescue': 'rescuing', 'active': 'unrescuing'}
        wanted = 'rescue' if state == 'active' else 'active'
        ironic.change_after(300, provision_state=now[wanted])
        ironic.change_after(400, provision_state=wanted, reservation=None)
        raise errors.IronicUnavailable('no answer')

    ironic.set_provision_state = lose
    change(bench)
    assert not ironic.begun
