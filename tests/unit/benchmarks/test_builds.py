# SPDX-License-Identifier: Apache-2.0
"""A build's own time is what no other service has had of it."""

import pytest

from benchmarks import builds, logs

SERVER = 'e9acef4c-2fae-4f0e-82fc-d44b18b13a78'
RPC = 'benchmarks.rpc'
HTTP = 'urllib3.connectionpool'
SERVICES = {30006: 'placement', 30008: 'neutron'}


def line(at_ms, thread, text, *, request='req-1', logger='nova.compute'):
    """A line of a compute process, so many ms after eight."""
    stamp = f'2026-11-21 08:00:{at_ms // 1000:02d}.{at_ms % 1000:03d}'
    return f'{stamp} 7 DEBUG {logger} [thread:{thread}] [{request}] {text}'


def message(at_ms, end_ms, request='req-1'):
    """What the RPC server says of one that asks for a build."""
    method = 'with id None and method: build_and_run_instance.'
    return [
        line(at_ms, 'rpc_0', f'Receive incoming message {method}', request=''),
        line(
            end_ms,
            'rpc_0',
            f'Replied success message {method} Time elapsed: 0.010',
            request=request,
        ),
    ]


def begun(at_ms, server=SERVER, **more):
    """Nova's code for one server begins."""
    text = f'[instance: {server}] Starting instance...'
    return line(at_ms, 'build_0', text, **more)


def spawned(at_ms, server=SERVER, **more):
    """The driver is called."""
    text = f'[instance: {server}] Start spawning the instance on the hyperv…'
    return line(at_ms, 'build_0', text, **more)


def call(at_ms, end_ms, thread='build_0', request='req-1'):
    """A call of the conductor."""
    more = {'logger': RPC, 'request': request}
    return [
        line(at_ms, thread, 'RPC begins: conductor object_action', **more),
        line(end_ms, thread, 'RPC ends: conductor object_action', **more),
    ]


def asked(at_ms, end_ms, path, port=30006, thread='build_0'):
    """A request over a connection of its own."""
    answer = f'http://127.0.0.1:{port} "GET {path} HTTP/1.1" 200 None'
    connect = f'Starting new HTTP connection (1): 127.0.0.1:{port}'
    return [
        line(at_ms, thread, connect, logger=HTTP),
        line(end_ms, thread, answer, logger=HTTP),
    ]


def found(*lines):
    """All builds of a log."""
    ordered = sorted(lines, key=lambda one: one[:23])
    return builds.builds(logs.parsed(ordered), SERVICES)


def test_requests_of_a_build_are_not_its_own_time():
    """Of 100 ms, 30 are the conductor's, 20 Placement's, 10 of both."""
    (build,) = found(
        *message(0, 8),
        begun(10),
        *call(20, 50),
        *asked(40, 60, f'/allocations/{SERVER}'),
        spawned(100),
    )
    assert build.total_s == pytest.approx(0.1, abs=1e-5)
    assert build.queued_s == pytest.approx(0.01, abs=1e-5)
    assert build.own_s == pytest.approx(0.06, abs=1e-5)
    assert set(builds.kinds([build])) == {
        'RPC conductor object_action',
        'placement GET /allocations/…',
    }


def test_waiting_is_own_time():
    """For a lock, a thread, a periodic task: nobody else is asked."""
    (build,) = found(*message(0, 8), begun(4000), spawned(9000))
    assert build.own_s == pytest.approx(9.0, abs=1e-5)
    assert build.queued_s == pytest.approx(4.0, abs=1e-5)


def test_requests_of_others_count_for_them():
    """What another build asks at the same time shortens nothing here."""
    (build,) = found(
        *message(0, 8),
        begun(10),
        *call(20, 90, thread='build_1', request='req-2'),
        spawned(100),
    )
    assert build.own_s == pytest.approx(0.1, abs=1e-5)


def networks(at_ms, end_ms):
    """What the thread that allocates networks asks Neutron."""
    return asked(at_ms, end_ms, '/v2.0/ports?x', port=30008, thread='net_0')


def test_networks_count_while_the_build_waits_for_them():
    """It said its last word at 30, and goes on when they are there."""
    (build,) = found(
        *message(0, 8),
        begun(10),
        *networks(20, 80),
        *call(25, 30),
        spawned(90),
    )
    assert build.own_s == pytest.approx(0.09 - 0.055, abs=1e-5)
    assert 'neutron GET /v2.0/ports?' in builds.kinds([build])


def test_networks_that_nobody_waits_for_do_not_count():
    """The driver is called while they are still being allocated."""
    (build,) = found(
        *message(0, 8), begun(10), *networks(20, 180), spawned(90)
    )
    assert build.own_s == pytest.approx(0.09, abs=1e-5)


def test_what_is_asked_after_the_driver_was_called_is_not_of_it():
    """The driver has requests of its own."""
    (build,) = found(
        *message(0, 8),
        begun(10),
        *call(20, 30),
        spawned(100),
        *call(200, 300),
    )
    assert build.own_s == pytest.approx(0.09, abs=1e-5)
    assert len(build.calls) == 1


def test_build_that_is_sent_twice_is_two_builds():
    """The second message of a request belongs to its second begin."""
    lines = [
        *message(0, 8),
        begun(10),
        *message(1000, 1008),
        begun(1020),
        spawned(1050),
    ]
    (build,) = found(*lines)
    assert build.received_s % 60 == pytest.approx(1.0, abs=1e-5)
    assert build.total_s == pytest.approx(0.05, abs=1e-5)


def test_build_that_was_under_way_before_is_left_out():
    """Its message is not in the log."""
    assert found(spawned(100)) == []


def test_reasons_are_counted_without_names():
    """A node's name would make each reason another one."""
    why = f'Insufficient compute resources: node {SERVER} is in use by'
    texts = [
        f'[instance: {n}] Build of instance {n} was re-scheduled: {why}'
        for n in 'ab'
    ]
    # What is told later in the same thread may end with it, once more.
    later = f'Something else: nova.exception.RescheduledException: {texts[0]}'
    lines = logs.parsed([line(1, 'b_0', text) for text in [*texts, later]])
    assert builds.sent_again(lines) == {
        'Insufficient compute resources: node … is in use by': 2
    }
