# SPDX-License-Identifier: Apache-2.0
"""What is kept on disk: right or absent, whatever happened to the file."""

import logging
import os
import pathlib
import signal
import sys
import textwrap
import threading

import pytest

from resource_tracker.delta import KnownProvider
from resource_tracker.ledger import FileLedger
from resource_tracker.memory import Memory
from resource_tracker.provider import Inventory

HOST = 'c1'


def memory(generation=3, **fields):
    """What is known of a provider."""
    values = {
        'inventories': {'CUSTOM_A': Inventory('CUSTOM_A', False).body()},
        'traits': frozenset({'COMPUTE_NODE', 'CUSTOM_ODD'}),
        'aggregates': None,
        **fields,
    }
    known = KnownProvider('uuid', generation, **values)
    return Memory(
        known=known, ours=frozenset({'COMPUTE_NODE'}), record='1700000000'
    )


@pytest.fixture
def path(tmp_path):
    """Where a ledger may be."""
    return tmp_path / 'placement' / 'c1'


@pytest.fixture
def ledger(path):
    """A new one."""
    made = FileLedger(path, HOST)
    yield made
    made.close()


def facts_of(recalled):
    """What a memory knows, without how it is kept."""
    return recalled and (recalled.known, recalled.ours, recalled.record)


def read(path, host=HOST):
    """All that another life recalls of these nodes."""
    ledger = FileLedger(path, host)
    found = {n: facts_of(ledger.recall(n)) for n in ('n0', 'n1', 'n2')}
    ledger.close()
    return {node: facts for node, facts in found.items() if facts}


@pytest.mark.parametrize(
    'noted',
    [
        memory(),
        memory(aggregates=frozenset()),
        memory(aggregates=frozenset({'g'}), inventories={}),
        memory(traits=frozenset()),
    ],
)
def test_what_was_noted_is_recalled(path, ledger, noted):
    """Each part of it, and the newest of each node."""
    ledger.note('n0', memory(generation=1))
    ledger.note('n0', noted)
    assert read(path) == {'n0': facts_of(noted)}
    assert read(path) == {'n0': facts_of(noted)}


def test_earlier_life_is_recalled_once(path, ledger):
    """What was looked at since is known better."""
    ledger.note('n0', memory())
    again = FileLedger(path, HOST)
    assert again.recall('n0')
    assert again.recall('n0') is None
    again.close()


def test_struck_node_is_void(path, ledger):
    """Given away: what another holder writes is not in here."""
    ledger.note('n0', memory())
    ledger.note('n1', memory())
    ledger.strike('n0')
    assert read(path) == {'n1': facts_of(memory())}
    again = FileLedger(path, HOST)
    again.strike('n1')
    assert again.recall('n1') is None
    again.close()
    assert read(path) == {}


def history():
    """Ten facts, and what they come to after each."""
    state, states, steps = {}, [{}], []
    for number in range(10):
        node = f'n{number % 3}'
        if number == 7:
            steps.append((node, None))
            state = {k: v for k, v in state.items() if k != node}
        else:
            noted = memory(generation=number)
            steps.append((node, noted))
            state = {**state, node: facts_of(noted)}
        states.append(state)
    return steps, states


def test_killed_between_any_two_bytes(path):
    """What is read is what was true after some fact, and not before."""
    ledger = FileLedger(path, HOST)
    ends = [path.stat().st_size]
    steps, states = history()
    for node, noted in steps:
        if noted is None:
            ledger.strike(node)
        else:
            ledger.note(node, noted)
        ends.append(path.stat().st_size)
    ledger.close()
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        # A line whose line end alone is missing is whole.
        facts_count = sum(end - 1 <= length for end in ends) - 1
        assert read(path) == states[max(0, facts_count)], length


def test_any_byte_may_be_wrong(path, ledger):
    """A flipped byte costs its line, or all; nothing untrue is recalled."""
    steps, _ = history()
    for node, noted in steps[:6]:
        ledger.note(node, noted)
    whole = path.read_bytes()
    true = [facts_of(noted) for _, noted in steps[:6]]
    for place in range(0, len(whole), 3):
        wrong = bytes([whole[place] ^ 0x20])
        path.write_bytes(whole[:place] + wrong + whole[place + 1 :])
        assert all(facts in true for facts in read(path).values()), place


@pytest.mark.parametrize(
    'content', [b'', b'\n', b'\0' * 4096, b'{}', os.urandom(512), b'\xff\n{']
)
def test_rubbish_is_no_ledger(path, content):
    """It is read as nothing, and replaced by a good one."""
    path.parent.mkdir()
    path.write_bytes(content)
    assert read(path) == {}
    ledger = FileLedger(path, HOST)
    ledger.note('n0', memory())
    ledger.close()
    assert read(path) == {'n0': facts_of(memory())}


def test_file_of_another_host_is_not_read(path, ledger):
    """Its nodes are not ours; from now on the file is."""
    ledger.note('n0', memory())
    assert read(path, 'c2') == {}
    assert read(path) == {}


def test_file_of_another_format_is_not_read(path, ledger):
    """After an upgrade that changes the format all is read once."""
    ledger.note('n0', memory())
    ledger.close()
    older = FileLedger(path, HOST, format_number=0)
    older.note('n0', memory())
    older.close()
    assert read(path) == {}


def test_file_stays_short(path):
    """A node that changes all day does not fill the disk."""
    ledger = FileLedger(path, HOST, spare_lines_count=10)
    for number in range(500):
        ledger.note(f'n{number % 3}', memory(generation=number))
        assert len(path.read_bytes().splitlines()) <= 1 + 3 + 11
    ledger.close()
    assert {n: f[0].generation for n, f in read(path).items()} == {
        'n0': 498,
        'n1': 499,
        'n2': 497,
    }


def test_half_written_successor_is_not_read(path, ledger):
    """Killed while the file was being replaced: the old one counts."""
    ledger.note('n0', memory())
    path.with_name('c1.new').write_bytes(path.read_bytes()[:20])
    assert read(path) == {'n0': facts_of(memory())}


def test_disk_that_fails_is_said_once(tmp_path, caplog):
    """The daemon goes on; only the next start is slower."""
    caplog.set_level(logging.WARNING)
    in_the_way = tmp_path / 'file'
    in_the_way.write_text('')
    ledger = FileLedger(in_the_way / 'c1', HOST)
    for _ in range(3):
        ledger.note('n0', memory())
        ledger.strike('n0')
    assert ledger.recall('n0') is None
    assert len(caplog.messages) == 1


@pytest.mark.skipif(
    os.environ.get('IRONIC_COMPUTE_TEST_CONCURRENCY') == 'eventlet',
    reason='eventlet waits for devices, and never for files as ledgers are',
)
def test_full_disk_is_said_once(path, ledger, caplog):
    """A write that fails ends the ledger, not the caller."""
    caplog.set_level(logging.WARNING)
    if not pathlib.Path('/dev/full').exists():
        pytest.skip('no /dev/full on this system')
    ledger.note('n0', memory())
    full = os.open('/dev/full', os.O_WRONLY)
    os.dup2(full, ledger.descriptor)
    os.close(full)
    for _ in range(3):
        ledger.note('n1', memory())
    assert len(caplog.messages) == 1
    assert read(path) == {'n0': facts_of(memory())}


_WRITER = textwrap.dedent(
    """
    import sys
    from resource_tracker.ledger import FileLedger
    from tests.unit.resource_tracker.test_ledger import memory
    ledger = FileLedger(sys.argv[1], 'c1', spare_lines_count=5)
    open(sys.argv[2], 'w').close()
    for number in range(10**9):
        ledger.note(f'n{number % 3}', memory(generation=number))
    """
)


def test_killed_process_leaves_a_good_file(path, tmp_path):
    """Killed at work, replacing the file all the time."""
    seen = []
    for wait_s in (0.0, 0.013, 0.031, 0.057):
        is_up = tmp_path / f'up-{wait_s}'
        words = [sys.executable, '-c', _WRITER, str(path), str(is_up)]
        environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
        writer = os.posix_spawn(sys.executable, words, environment)
        for _ in range(3000):
            if is_up.exists():
                break
            threading.Event().wait(0.01)
        threading.Event().wait(wait_s)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        found = read(path)
        generations = sorted(f[0].generation for f in found.values())
        if len(generations) == 3:
            # The newest of each node: three in a row.
            assert generations[2] - generations[0] == 2
        seen.append(len(generations))
    assert max(seen) == 3
