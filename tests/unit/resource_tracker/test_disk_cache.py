# SPDX-License-Identifier: Apache-2.0
"""The disk cache: its records are right or absent after any damage."""

import contextlib
import logging
import os
import pathlib
import resource
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
    """Return the state of a provider at a generation."""
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
    """Return the path of a cache file that does not exist."""
    return tmp_path / 'placement' / 'c1'


@pytest.fixture
def disk_cache(path):
    """Return a new cache."""
    made = FileDiskCache(path, HOST)
    yield made
    made.close()


def facts_of(found):
    """Return the parts of a state that the file keeps, or None."""
    return found and (found.known, found.our_traits, found.row_id)


def read(path, host=HOST):
    """Return the records that a new process reads, by node."""
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
def test_newest_record_is_read_back(path, disk_cache, state):
    """The newest record of a node is read back, with each of its parts."""
    disk_cache.save('n0', make_state(generation=1))
    disk_cache.save('n0', state)
    assert read(path) == {'n0': facts_of(state)}
    assert read(path) == {'n0': facts_of(state)}


def test_record_of_an_earlier_process_is_returned_once(path, disk_cache):
    """A record of an earlier process is returned only once.

    Later the process itself has newer knowledge of the provider.
    """
    disk_cache.save('n0', make_state())
    again = FileDiskCache(path, HOST)
    assert again.take('n0')
    assert again.take('n0') is None
    again.close()


def test_discarded_node_has_no_record(path, disk_cache):
    """A node that was given away has no record any more."""
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
    """Return ten changes of the file, and the records after each."""
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
    """A file that ends after any byte has the records of the whole lines."""
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
        # A line that lacks only its line end is read.
        facts_count = sum(end - 1 <= length for end in ends) - 1
        assert read(path) == all_expected[max(0, facts_count)], length


def test_any_byte_may_be_wrong(path, disk_cache):
    """A damaged byte loses records, and never returns a wrong one."""
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
def test_file_with_other_content_is_replaced(path, content):
    """A file with other content has no records, and is replaced."""
    path.parent.mkdir()
    path.write_bytes(content)
    assert read(path) == {}
    disk_cache = FileDiskCache(path, HOST)
    disk_cache.save('n0', make_state())
    disk_cache.close()
    assert read(path) == {'n0': facts_of(make_state())}


def test_file_of_another_host_is_not_read(path, disk_cache):
    """The cache of another host is not used, and is overwritten."""
    disk_cache.save('n0', make_state())
    assert read(path, 'c2') == {}
    assert read(path) == {}


def test_file_of_another_format_is_not_read(path, disk_cache):
    """A cache in the format of another release is not used."""
    disk_cache.save('n0', make_state())
    disk_cache.close()
    older = FileDiskCache(path, HOST, format_number=0)
    older.save('n0', make_state())
    older.close()
    assert read(path) == {}


def test_file_stays_short(path):
    """A node that changes often does not make the file grow."""
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
    """A process killed during the replacement leaves the old file valid."""
    disk_cache.save('n0', make_state())
    path.with_name('c1.new').write_bytes(path.read_bytes()[:20])
    assert read(path) == {'n0': facts_of(make_state())}


def test_folder_that_cannot_be_used_is_logged_once(tmp_path, caplog):
    """A folder that cannot be used is logged once, and raises nothing."""
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
    reason='eventlet blocks on a write to a device, unlike one to a file',
)
def test_full_disk_is_logged_once(path, disk_cache, caplog):
    """A failed write is logged once, and ends the use of the cache."""
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


@pytest.mark.skipif(
    os.environ.get('IRONIC_COMPUTE_TEST_CONCURRENCY') == 'eventlet',
    reason='under eventlet all threads hang with one',
)
def test_disk_that_hangs_keeps_one_thread(path, caplog):
    """A full pipe is such a disk. The file is deleted when it goes on."""
    caplog.set_level(logging.WARNING)
    path.parent.mkdir()
    os.mkfifo(f'{path}.new')
    read_fd = os.open(f'{path}.new', os.O_RDONLY | os.O_NONBLOCK)
    disk_cache = FileDiskCache(path, HOST, patience_s=0.1)
    _fill(path)
    hung = threading.Thread(
        target=disk_cache.save, args=('n0', make_state()), daemon=True
    )
    hung.start()
    hung.join(0.5)
    assert hung.is_alive()
    disk_cache.save('n1', make_state())
    disk_cache.save('n2', make_state())
    assert len(caplog.messages) == 1
    while hung.is_alive():
        with contextlib.suppress(BlockingIOError):
            os.read(read_fd, 1 << 16)
        hung.join(0.01)
    assert not path.exists()
    disk_cache.save('n3', make_state())
    assert not path.exists()
    os.close(read_fd)


def _fill(pipe):
    """Write to a pipe until it takes no more."""
    fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b'x')
    os.close(fd)


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
    """A process killed while it replaces the file leaves a readable one."""
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
            # The newest record of each node: three successive numbers.
            assert generations[2] - generations[0] == 2
        seen.append(len(generations))
    assert max(seen) == 3


def test_short_write_loses_no_other_record(path, disk_cache, caplog):
    """The rest of the line would else be taken for a part of the next one."""
    disk_cache.save('n0', make_state(generation=1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    full_at = path.stat().st_size + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, limits[1]))
    try:
        disk_cache.save('n1', make_state(generation=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    disk_cache.save('n2', make_state(generation=2))
    assert 'Could not save' in caplog.text
    assert set(read(path)) == {'n0'}


def test_record_that_has_become_outdated_on_a_full_disk_is_not_read(
    path, disk_cache
):
    """Only the records of nodes that have changed since are unreadable."""
    for node in ('n', 'n0', 'n1', 'n2'):
        disk_cache.save(node, make_state(generation=1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    full_at = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, limits[1]))
    try:
        disk_cache.save('n0', make_state(generation=2))
        disk_cache.discard('n')
        disk_cache.save('new', make_state(generation=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert set(read(path)) == {'n1', 'n2'}
    disk_cache.close()
    disk_cache.save('n2', make_state(generation=2))
    assert set(read(path)) == {'n1', 'n2'}, 'a successor may use it'


def test_half_written_successor_is_deleted(path):
    """It would take room on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, limits[1]))
    try:
        FileDiskCache(path, HOST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(path.parent.iterdir()) == []
