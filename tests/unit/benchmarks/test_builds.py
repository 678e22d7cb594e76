# SPDX-License-Identifier: Apache-2.0
"""A build's own time, without its requests to other services."""

import pytest

from benchmarks import builds, logs

SERVER = 'e9acef4c-2fae-4f0e-82fc-d44b18b13a78'
RPC = 'benchmarks.rpc'
HTTP = 'urllib3.connectionpool'
SERVICES = {30006: 'placement', 30008: 'neutron'}


def line(at_ms, thread, text, *, request='req-1', logger='nova.compute'):
    """Return a log line of a compute process, in ms after eight o'clock."""
    stamp = f'2026-11-21 08:00:{at_ms // 1000:02d}.{at_ms % 1000:03d}'
    return f'{stamp} 7 DEBUG {logger} [thread:{thread}] [{request}] {text}'


def message(at_ms, end_ms, request='req-1'):
    """Return the RPC server's lines for a message that requests a build."""
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
    """Return the line with which Nova's code for one server begins."""
    text = f'[instance: {server}] Starting instance...'
    return line(at_ms, 'build_0', text, **more)


def spawned(at_ms, server=SERVER, **more):
    """Return the line with which the driver is called."""
    text = f'[instance: {server}] Start spawning the instance on the hyperv…'
    return line(at_ms, 'build_0', text, **more)


def call(at_ms, end_ms, thread='build_0', request='req-1'):
    """Return the lines of a call of the conductor."""
    more = {'logger': RPC, 'request': request}
    return [
        line(at_ms, thread, 'RPC begins: conductor object_action', **more),
        line(end_ms, thread, 'RPC ends: conductor object_action', **more),
    ]


def asked(at_ms, end_ms, path, port=30006, thread='build_0'):
    """Return the lines of a request over a connection of its own."""
    answer = f'http://127.0.0.1:{port} "GET {path} HTTP/1.1" 200 None'
    connect = f'Starting new HTTP connection (1): 127.0.0.1:{port}'
    return [
        line(at_ms, thread, connect, logger=HTTP),
        line(end_ms, thread, answer, logger=HTTP),
    ]


def found(*lines):
    """Return all builds of a log."""
    ordered = sorted(lines, key=lambda one: one[:23])
    return builds.builds(logs.parsed(ordered), SERVICES)


def test_requests_of_a_build_are_not_its_own_time():
    """Concurrent requests to two services are subtracted once."""
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
    """Time without a request to another service is own time."""
    (build,) = found(*message(0, 8), begun(4000), spawned(9000))
    assert build.own_s == pytest.approx(9.0, abs=1e-5)
    assert build.queued_s == pytest.approx(4.0, abs=1e-5)


def test_requests_of_others_count_for_them():
    """The request of another build does not shorten the own time."""
    (build,) = found(
        *message(0, 8),
        begun(10),
        *call(20, 90, thread='build_1', request='req-2'),
        spawned(100),
    )
    assert build.own_s == pytest.approx(0.1, abs=1e-5)


def networks(at_ms, end_ms):
    """Return the lines of a request by the thread that allocates networks."""
    return asked(at_ms, end_ms, '/v2.0/ports?x', port=30008, thread='net_0')


def test_networks_count_while_the_build_waits_for_them():
    """Requests for networks count from the build's last line on."""
    (build,) = found(
        *message(0, 8),
        begun(10),
        *networks(20, 80),
        *call(25, 30),
        spawned(90),
    )
    assert build.own_s == pytest.approx(0.09 - 0.055, abs=1e-5)
    assert 'neutron GET /v2.0/ports?' in builds.kinds([build])


def test_networks_that_the_build_does_not_wait_for_do_not_count():
    """Requests for networks that end after the driver's call do not count."""
    (build,) = found(
        *message(0, 8), begun(10), *networks(20, 180), spawned(90)
    )
    assert build.own_s == pytest.approx(0.09, abs=1e-5)


def test_requests_after_the_call_of_the_driver_do_not_count():
    """Requests of the driver do not count."""
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
    """A build whose message is not in the log is left out."""
    assert found(spawned(100)) == []


def test_reasons_are_counted_without_names():
    """Reasons that differ only in a node's name count as one."""
    why = f'Insufficient compute resources: node {SERVER} is in use by'
    texts = [
        f'[instance: {n}] Build of instance {n} was re-scheduled: {why}'
        for n in 'ab'
    ]
    # A later line of the same thread may end with the same text.
    later = f'Something else: nova.exception.RescheduledException: {texts[0]}'
    lines = logs.parsed([line(1, 'b_0', text) for text in [*texts, later]])
    assert builds.sent_again(lines) == {
        'Insufficient compute resources: node … is in use by': 2
    }
