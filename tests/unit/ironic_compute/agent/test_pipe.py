# SPDX-License-Identifier: Apache-2.0
"""The pipes between agent and worker."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys

import pytest

from hashring.paths import Path, PathState
from hashring.ring import Host
from hashring.workers import (
    HostAdded,
    HostForgotten,
    HostRetired,
    MappingConfirmed,
    ServiceFacts,
    WorkerView,
)
from ironic_compute.agent import pipe
from ironic_compute.cmd import worker

C1 = Host('c1')
FACTS = ServiceFacts(mapped=True, disabled=False, exists=True)
VIEW = WorkerView(
    deadline_s=12.5,
    ring=(Host('c1'), Host('c2')),
    agreed_since_s=7.25,
    agreed_until_s=9.5,
    known=(Host('c1'), Host('c2'), Host('c3')),
    opens_s={Host('c3'): 20.0},
    confirmed_mappings=(Host('c2'),),
    member_homes=(Host('c1'), Host('c2')),
)


@pytest.fixture
def ends():
    """The two ends of a pipe: (read, write)."""
    fds = os.pipe()
    yield fds
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def test_view_survives_the_pipe():
    """A decoded view equals the view that the agent encoded."""
    assert pipe.decode_view(pipe.encode_view(VIEW)) == VIEW


def test_view_of_an_agent_from_before_an_upgrade_is_heard():
    """A view without newer keys is decoded; new nodes are not placed."""
    told = json.loads(pipe.encode_view(VIEW))
    del told['agreed_since_s'], told['agreed_until_s'], told['member_homes']
    heard = pipe.decode_view(json.dumps(told).encode())
    assert heard == dataclasses.replace(
        VIEW, agreed_since_s=None, agreed_until_s=0.0, member_homes=()
    )


@pytest.mark.parametrize(
    'message',
    [
        pipe.IsServing(),
        pipe.IsAlive(),
        pipe.IsStarting(),
        pipe.CannotStart('why'),
        pipe.Paths(
            {
                Path('RabbitMQ'): PathState(12.5, 'refused'),
                Path('Placement'): PathState(answered_s=7.0),
            }
        ),
        HostAdded(Host('c9')),
        HostForgotten(Host('c9')),
        HostRetired(Host('c9')),
        MappingConfirmed(Host('c9')),
        pipe.Services(
            {
                Host('c1'): ServiceFacts(
                    True,
                    disabled=False,
                    exists=True,
                    has_servers=True,
                    service_id=3,
                )
            }
        ),
    ],
)
def test_message_survives_the_pipe(message):
    """A decoded message equals the message that the worker encoded."""
    assert pipe.decode_message(pipe.encode_message(message)) == message


def test_unknown_message_is_refused():
    """Decoding another program's line raises ValueError."""
    with pytest.raises(ValueError, match='unknown'):
        pipe.decode_message(b'{"is": "poetry"}')


@pytest.mark.parametrize('line', [b'{}', b'[]', b'{', b'{"is": "admitted"}'])
def test_malformed_message_is_refused(line):
    """Decoding a line without the needed fields raises ValueError."""
    with pytest.raises(ValueError, match='message'):
        pipe.decode_message(line)


def test_start_is_a_sign_of_life_for_an_older_agent():
    """An agent of an older release reads it as the message of a live worker.

    The worker writes the line itself, before it imports anything.
    """
    assert json.loads(worker.STARTING)['is'] == 'alive'
    assert pipe.decode_message(worker.STARTING) == pipe.IsStarting()


def test_services_of_a_newer_or_older_worker_are_read():
    """Unknown fields are ignored, and a new one may be missing."""
    sent = json.loads(pipe.encode_message(pipe.Services({C1: FACTS})))
    sent['services']['c1']['colour'] = 'green'
    del sent['services']['c1']['has_servers']
    read = pipe.decode_message(json.dumps(sent).encode())
    assert read == pipe.Services({C1: FACTS})


def test_reader_puts_lines_together(ends):
    """A line that comes in pieces is one line."""
    read, write = ends
    reader = pipe.LineReader(read)
    os.write(write, b'one\ntw')
    assert list(reader.lines(0)) == [b'one']
    os.write(write, b'o\n')
    assert list(reader.lines(0)) == [b'two']
    assert list(reader.lines(0)) == []


def test_next_line_leaves_the_others(ends):
    """Views that came with the appointment are not lost."""
    read, write = ends
    mine = pipe.Appointment(Host('c1'), is_home=True)
    os.write(write, pipe.encode_appointment(mine) + b'view\nhal')
    reader = pipe.LineReader(read)
    assert pipe.decode_appointment(reader.next_line()) == mine
    assert list(reader.lines(0)) == [b'view']
    os.write(write, b'f\n')
    os.close(write)
    assert reader.next_line() == b'half'
    with pytest.raises(EOFError):
        reader.next_line()


def test_appointment_of_an_older_agent_has_no_metrics():
    """A worker of a newer release does not wait for requests then."""
    old = b'{"host": "c1", "is_home": false}'
    assert pipe.decode_appointment(old) == pipe.Appointment(Host('c1'), False)
    pool = {'conductor_group': '', 'shard': None}
    mine = pipe.Appointment(Host('c1'), True, metrics_fd=7, pool=pool)
    assert pipe.decode_appointment(pipe.encode_appointment(mine)) == mine


def test_reader_sees_the_end(ends):
    """Reading a closed pipe raises EOFError."""
    read, write = ends
    os.close(write)
    with pytest.raises(EOFError):
        list(pipe.LineReader(read).lines(0))


def test_writer_never_blocks_on_a_stopped_reader(ends):
    """A full pipe drops older lines; later lines arrive whole."""
    read, write = ends
    writer = pipe.NewestLineWriter(write)
    line = b'x' * 9999 + b'\n'
    while writer.write(line):
        pass
    assert not writer.write(line)
    reader = pipe.LineReader(read)
    heard = list(reader.lines(0)) + list(reader.lines(0))
    assert set(heard) == {b'x' * 9999}
    assert writer.write(b'newest\n')
    assert list(reader.lines(0))[-1] == b'newest'


def test_writer_survives_a_dead_reader(ends):
    """A write to a worker that has died returns False."""
    read, write = ends
    os.close(read)
    assert not pipe.NewestLineWriter(write).write(b'hello\n')


_HEAR_STDIN_ON_EVENTLET = """
import eventlet

eventlet.monkey_patch()
from ironic_compute.agent import pipe

print(*pipe.LineReader(0).lines(10.0))
"""


def test_stdin_is_heard_on_eventlet():
    """File descriptor 0 is read on eventlet, too."""
    heard = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', _HEAR_STDIN_ON_EVENTLET],
        input=b'{}\n',
        capture_output=True,
        check=True,
    )
    assert heard.stdout == b"b'{}'\n"
