# SPDX-License-Identifier: Apache-2.0
"""What is kept on disk: right or absent, whatever happened to the file."""

import contextlib
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


def make_state(generation=3, **fields):
    """What is known of a provider."""
    values = {
        'inventories': {'CUSTOM_A': Inventory('CUSTOM_A', False).body()},
        'traits': frozenset({'COMPUTE_NODE', 'CUSTOM_ODD'}),
        'aggregates': None,
        **fields,
    }
    known = KnownProvider('uuid', generation, **values)
    return ProviderState(
        known=known,
        our_traits=frozenset({'COMPUTE_NODE'}),
        row_id='1700000000',
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


def facts_of(found):
    """What a memory knows, without how it is kept."""
    return found and (found.known, found.our_traits, found.row_id)


def read(path, host=HOST):
    """All that another life recalls of these nodes."""
    disk_cache = FileDiskCache(path, host)
    found = {n: facts_of(disk_cache.take(n)) for n in ('n0', 'n1', 'n2')}
    disk_cache.close()
    return {node: facts for node, facts in found.items() if facts}


@pytest.mark.parametrize(
    'state',
    [
        make_state(),
        make_state(aggregates=frozenset()),
        make_state(aggregates=frozenset({'g'}), inventories={}),
        make_state(traits=frozenset()),
    ],
)
def test_what_was_noted_is_recalled(path, disk_cache, state):
    """Each part of it, and the newest of each node."""
    disk_cache.save('n0', make_state(generation=1))
    disk_cache.save('n0', state)
    assert read(path) == {'n0': facts_of(state)}
    assert read(path) == {'n0': facts_of(state)}


def test_earlier_life_is_recalled_once(path, disk_cache):
    """What was looked at since is known better."""
    disk_cache.save('n0', make_state())
    again = FileDiskCache(path, HOST)
    assert again.take('n0')
    assert again.take('n0') is None
    again.close()


def test_struck_node_is_void(path, disk_cache):
    """Given away: what another holder writes is not in here."""
    disk_cache.save('n0', make_state())
    disk_cache.save('n1', make_state())
    disk_cache.discard('n0')
    assert read(path) == {'n1': facts_of(make_state())}
    again = FileDiskCache(path, HOST)
    again.discard('n1')
    assert again.take('n1') is None
    again.close()
    assert read(path) == {}


def history():
    """Ten facts, and what they come to after each."""
    expected, all_expected, steps = {}, [{}], []
    for number in range(10):
        node = f'n{number % 3}'
        if number == 7:
            steps.append((node, None))
            expected = {k: v for k, v in expected.items() if k != node}
        else:
            state = make_state(generation=number)
            steps.append((node, state))
            expected = {**expected, node: facts_of(state)}
        all_expected.append(expected)
    return steps, all_expected


def test_killed_between_any_two_bytes(path):
    """What is read is what was true after some fact, and not before."""
    disk_cache = FileDiskCache(path, HOST)
    ends = [path.stat().st_size]
    steps, all_expected = history()
    for node, state in steps:
        if state is None:
            disk_cache.discard(node)
        else:
            disk_cache.save(node, state)
        ends.append(path.stat().st_size)
    disk_cache.close()
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        # A line whose line end alone is missing is whole.
        facts_count = sum(end - 1 <= length for end in ends) - 1
        assert read(path) == all_expected[max(0, facts_count)], length


def test_any_byte_may_be_wrong(path, disk_cache):
    """A flipped byte costs its line, or all; nothing untrue is recalled."""
    steps, _ = history()
    for node, state in steps[:6]:
        disk_cache.save(node, state)
    whole = path.read_bytes()
    true = [facts_of(state) for _, state in steps[:6]]
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
    disk_cache.save('n0', make_state())
    disk_cache.close()
    assert read(path) == {'n0': facts_of(make_state())}


def test_file_of_another_host_is_not_read(path, disk_cache):
    """Its nodes are not ours; from now on the file is."""
    disk_cache.save('n0', make_state())
    assert read(path, 'c2') == {}
    assert read(path) == {}


def test_file_of_another_format_is_not_read(path, disk_cache):
    """After an upgrade that changes the format all is read once."""
    disk_cache.save('n0', make_state())
    disk_cache.close()
    older = FileDiskCache(path, HOST, format_number=0)
    older.save('n0', make_state())
    older.close()
    assert read(path) == {}


def test_file_stays_short(path):
    """A node that changes all day does not fill the disk."""
    disk_cache = FileDiskCache(path, HOST, spare_lines_count=10)
    for number in range(500):
        disk_cache.save(f'n{number % 3}', make_state(generation=number))
        assert len(path.read_bytes().splitlines()) <= 1 + 3 + 11
    disk_cache.close()
    assert {n: f[0].generation for n, f in read(path).items()} == {
        'n0': 498,
        'n1': 499,
        'n2': 497,
    }


def test_half_written_successor_is_not_read(path, disk_cache):
    """Killed while the file was being replaced: the old one counts."""
    disk_cache.save('n0', make_state())
    path.with_name('c1.new').write_bytes(path.read_bytes()[:20])
    assert read(path) == {'n0': facts_of(make_state())}


def test_disk_that_fails_is_said_once(tmp_path, caplog):
    """The daemon goes on; only the next start is slower."""
    caplog.set_level(logging.WARNING)
    in_the_way = tmp_path / 'file'
    in_the_way.write_text('')
    disk_cache = FileDiskCache(in_the_way / 'c1', HOST)
    for _ in range(3):
        disk_cache.save('n0', make_state())
        disk_cache.discard('n0')
    assert disk_cache.take('n0') is None
    assert len(caplog.messages) == 1


def _descriptor_of(path):
    """The descriptor under which this process has a file open."""
    for link in pathlib.Path('/proc/self/fd').iterdir():
        with contextlib.suppress(FileNotFoundError):
            if link.samefile(path):
                return int(link.name)
    return None


@pytest.mark.skipif(
    os.environ.get('IRONIC_COMPUTE_TEST_CONCURRENCY') == 'eventlet',
    reason='eventlet waits for devices, and never for files as ledgers are',
)
def test_full_disk_is_said_once(path, disk_cache, caplog):
    """A write that fails ends the ledger, not the caller."""
    caplog.set_level(logging.WARNING)
    if not pathlib.Path('/dev/full').exists():
        pytest.skip('no /dev/full on this system')
    disk_cache.save('n0', make_state())
    full = os.open('/dev/full', os.O_WRONLY)
    os.dup2(full, _descriptor_of(path))
    os.close(full)
    for _ in range(3):
        disk_cache.save('n1', make_state())
    assert len(caplog.messages) == 1
    assert read(path) == {'n0': facts_of(make_state())}


_WRITER = textwrap.dedent(
    """
    import sys
    from resource_tracker.disk_cache import FileDiskCache
    from tests.unit.resource_tracker.test_disk_cache import make_state
    disk_cache = FileDiskCache(sys.argv[1], 'c1', spare_lines_count=5)
    open(sys.argv[2], 'w').close()
    for number in range(10**9):
        disk_cache.save(f'n{number % 3}', make_state(generation=number))
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
