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
from resource_tracker.disk_cache import FileDiskCache
from resource_tracker.provider import Inventory
from resource_tracker.provider_state import ProviderState

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
    return ProviderState(
        known=known, ours=frozenset({'COMPUTE_NODE'}), row_id='1700000000'
    )


@pytest.fixture
def path(tmp_path):
    """Where a ledger may be."""
    return tmp_path / 'placement' / 'c1'


@pytest.fixture
def disk_cache(path):
    """A new one."""
    made = FileDiskCache(path, HOST)
    yield made
    made.close()


def facts_of(recalled):
    """What a memory knows, without how it is kept."""
    return recalled and (recalled.known, recalled.ours, recalled.row_id)


def read(path, host=HOST):
    """All that another life recalls of these nodes."""
    disk_cache = FileDiskCache(path, host)
    found = {n: facts_of(disk_cache.recall(n)) for n in ('n0', 'n1', 'n2')}
    disk_cache.close()
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
def test_what_was_noted_is_recalled(path, disk_cache, noted):
    """Each part of it, and the newest of each node."""
    disk_cache.note('n0', memory(generation=1))
    disk_cache.note('n0', noted)
    assert read(path) == {'n0': facts_of(noted)}
    assert read(path) == {'n0': facts_of(noted)}


def test_earlier_life_is_recalled_once(path, disk_cache):
    """What was looked at since is known better."""
    disk_cache.note('n0', memory())
    again = FileDiskCache(path, HOST)
    assert again.recall('n0')
    assert again.recall('n0') is None
    again.close()


def test_struck_node_is_void(path, disk_cache):
    """Given away: what another holder writes is not in here."""
    disk_cache.note('n0', memory())
    disk_cache.note('n1', memory())
    disk_cache.strike('n0')
    assert read(path) == {'n1': facts_of(memory())}
    again = FileDiskCache(path, HOST)
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
    disk_cache = FileDiskCache(path, HOST)
    ends = [path.stat().st_size]
    steps, states = history()
    for node, noted in steps:
        if noted is None:
            disk_cache.strike(node)
        else:
            disk_cache.note(node, noted)
        ends.append(path.stat().st_size)
    disk_cache.close()
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        # A line whose line end alone is missing is whole.
        facts_count = sum(end - 1 <= length for end in ends) - 1
        assert read(path) == states[max(0, facts_count)], length


def test_any_byte_may_be_wrong(path, disk_cache):
    """A flipped byte costs its line, or all; nothing untrue is recalled."""
    steps, _ = history()
    for node, noted in steps[:6]:
        disk_cache.note(node, noted)
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
    disk_cache = FileDiskCache(path, HOST)
    disk_cache.note('n0', memory())
    disk_cache.close()
    assert read(path) == {'n0': facts_of(memory())}


def test_file_of_another_host_is_not_read(path, disk_cache):
    """Its nodes are not ours; from now on the file is."""
    disk_cache.note('n0', memory())
    assert read(path, 'c2') == {}
    assert read(path) == {}


def test_file_of_another_format_is_not_read(path, disk_cache):
    """After an upgrade that changes the format all is read once."""
    disk_cache.note('n0', memory())
    disk_cache.close()
    older = FileDiskCache(path, HOST, format_number=0)
    older.note('n0', memory())
    older.close()
    assert read(path) == {}


def test_file_stays_short(path):
    """A node that changes all day does not fill the disk."""
    disk_cache = FileDiskCache(path, HOST, spare_lines_count=10)
    for number in range(500):
        disk_cache.note(f'n{number % 3}', memory(generation=number))
        assert len(path.read_bytes().splitlines()) <= 1 + 3 + 11
    disk_cache.close()
    assert {n: f[0].generation for n, f in read(path).items()} == {
        'n0': 498,
        'n1': 499,
        'n2': 497,
    }


def test_half_written_successor_is_not_read(path, disk_cache):
    """Killed while the file was being replaced: the old one counts."""
    disk_cache.note('n0', memory())
    path.with_name('c1.new').write_bytes(path.read_bytes()[:20])
    assert read(path) == {'n0': facts_of(memory())}


def test_disk_that_fails_is_said_once(tmp_path, caplog):
    """The daemon goes on; only the next start is slower."""
    caplog.set_level(logging.WARNING)
    in_the_way = tmp_path / 'file'
    in_the_way.write_text('')
    disk_cache = FileDiskCache(in_the_way / 'c1', HOST)
    for _ in range(3):
        disk_cache.note('n0', memory())
        disk_cache.strike('n0')
    assert disk_cache.recall('n0') is None
    assert len(caplog.messages) == 1


@pytest.mark.skipif(
    os.environ.get('IRONIC_COMPUTE_TEST_CONCURRENCY') == 'eventlet',
    reason='eventlet waits for devices, and never for files as ledgers are',
)
def test_full_disk_is_said_once(path, disk_cache, caplog):
    """A write that fails ends the ledger, not the caller."""
    caplog.set_level(logging.WARNING)
    if not pathlib.Path('/dev/full').exists():
        pytest.skip('no /dev/full on this system')
    disk_cache.note('n0', memory())
    full = os.open('/dev/full', os.O_WRONLY)
    os.dup2(full, disk_cache.descriptor)
    os.close(full)
    for _ in range(3):
        disk_cache.note('n1', memory())
    assert len(caplog.messages) == 1
    assert read(path) == {'n0': facts_of(memory())}


_WRITER = textwrap.dedent(
    """
    import sys
    from resource_tracker.disk_cache import FileDiskCache
    from tests.unit.resource_tracker.test_disk_cache import memory
    disk_cache = FileDiskCache(sys.argv[1], 'c1', spare_lines_count=5)
    open(sys.argv[2], 'w').close()
    for number in range(10**9):
        disk_cache.note(f'n{number % 3}', memory(generation=number))
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
