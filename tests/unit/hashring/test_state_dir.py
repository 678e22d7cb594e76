# SPDX-License-Identifier: Apache-2.0
"""The state directory: one agent, and files that are whole or absent."""

import errno
import fcntl
import json
import os
import pathlib
import stat

import pytest

from hashring import errors
from hashring.group import LockToken
from hashring.ring import Host
from hashring.state_dir import StateDir

C1 = Host('c1')
POOL, OTHER_POOL = 'ironic-compute/*/s1', 'ironic-compute/*/s2'
TOKEN = LockToken('bG9jaw==')


def test_two_on_one_folder_are_refused(tmp_path: pathlib.Path) -> None:
    """A second agent on the same directory is refused."""
    first, second = StateDir(tmp_path, POOL), StateDir(tmp_path, POOL)
    first.open()
    with pytest.raises(errors.StateDirRefused, match='Another agent'):
        second.open()
    first.close()
    second.open()
    second.close()


def test_a_disk_without_locks_is_no_other_agent(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS is whose servers have no lock service."""

    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, 'flock', flock)
        with pytest.raises(errors.StateDirRefused, match='No locks') as caught:
            StateDir(tmp_path, POOL).open()
    assert 'Another agent' not in str(caught.value)


def test_an_unwritable_folder_is_refused(tmp_path: pathlib.Path) -> None:
    """An unwritable path is refused, and the error names the option."""
    (tmp_path / 'file').write_text('')
    with pytest.raises(errors.StateDirRefused, match='state_path'):
        StateDir(tmp_path / 'file' / 'below', POOL).open()


def test_a_folder_that_another_process_uses_can_be_checked(
    tmp_path: pathlib.Path,
) -> None:
    """By a daemon that waits for the end of the one before it."""
    first, second = StateDir(tmp_path, POOL), StateDir(tmp_path, POOL)
    first.open()
    second.check()
    first.close()
    (tmp_path / 'file').write_text('')
    with pytest.raises(errors.StateDirRefused, match='state_path'):
        StateDir(tmp_path / 'file' / 'below', POOL).check()


def test_what_is_written_is_read(tmp_path: pathlib.Path) -> None:
    """The token, known hosts and confirmed mappings are read again."""
    StateDir(tmp_path, POOL).write_home_lock(C1, TOKEN)
    StateDir(tmp_path, POOL).write_known([Host('c2'), Host('c1')])
    StateDir(tmp_path, POOL).write_confirmed_mappings([Host('c2')])
    assert StateDir(tmp_path, POOL).read_home_lock(C1) == TOKEN
    assert StateDir(tmp_path, POOL).read_known() == {'c1', 'c2'}
    assert StateDir(tmp_path, POOL).read_confirmed_mappings() == {'c2'}


@pytest.mark.parametrize('content', ['', '{', '[]', '{"home": "c1"}', 'null'])
def test_a_damaged_file_counts_as_absent(
    tmp_path: pathlib.Path, content: str
) -> None:
    """A damaged file counts as absent."""
    (tmp_path / 'home_lock.json').write_text(content)
    (tmp_path / 'known.json').write_text(content)
    (tmp_path / 'vouched.json').write_text(content)
    assert StateDir(tmp_path, POOL).read_home_lock(C1) is None
    assert StateDir(tmp_path, POOL).read_known() == frozenset()
    assert StateDir(tmp_path, POOL).read_confirmed_mappings() == frozenset()


def test_a_file_that_cannot_be_replaced_stays(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed write keeps the old file and is logged once."""
    folder = StateDir(tmp_path, POOL)
    folder.write_home_lock(C1, TOKEN)
    (tmp_path / 'home_lock.json.new').mkdir()
    for _ in range(3):
        folder.write_home_lock(C1, LockToken('another'))
    assert folder.read_home_lock(C1) == TOKEN
    assert caplog.text.count('Could not write') == 1


def test_token_of_another_home_host_is_not_returned(
    tmp_path: pathlib.Path,
) -> None:
    """A token that was saved for another home host is not returned."""
    folder = StateDir(tmp_path, POOL)
    folder.write_home_lock(C1, TOKEN)
    assert folder.read_home_lock(Host('c9')) is None


def test_hosts_of_another_pool_are_not_returned(
    tmp_path: pathlib.Path,
) -> None:
    """An agent that changes its pool does not carry hosts into the new one."""
    former = StateDir(tmp_path, OTHER_POOL)
    former.write_known([C1, Host('c2')])
    former.write_confirmed_mappings([C1])
    folder = StateDir(tmp_path, POOL)
    assert folder.read_known() == frozenset()
    assert folder.read_confirmed_mappings() == frozenset()
    folder.write_known([C1, Host('c3')])
    assert folder.read_known() == {C1, 'c3'}
    assert folder.read_confirmed_mappings() == frozenset()
    assert StateDir(tmp_path, OTHER_POOL).read_known() == frozenset()


@pytest.mark.parametrize('file', ['known', 'vouched', 'group'])
def test_files_never_mix_two_pools(tmp_path: pathlib.Path, file: str) -> None:
    """Nothing is written while the former pool's files cannot be emptied."""
    former = StateDir(tmp_path, OTHER_POOL)
    former.write_known([C1])
    former.write_confirmed_mappings([C1])
    (tmp_path / f'{file}.json.new').mkdir()
    folder = StateDir(tmp_path, POOL)
    assert not folder.write_known([Host('c3')])
    assert folder.read_known() == frozenset()
    assert StateDir(tmp_path, OTHER_POOL).read_known() <= {C1}
    (tmp_path / f'{file}.json.new').rmdir()
    assert folder.write_known([Host('c3')])
    assert folder.read_known() == {'c3'}


def test_files_of_an_older_release_are_read_and_readable(
    tmp_path: pathlib.Path,
) -> None:
    """Hosts are a plain list, as in releases that saved no pool's name."""
    (tmp_path / 'known.json').write_text('["c1", "c2"]')
    (tmp_path / 'vouched.json').write_text('["c2"]')
    folder = StateDir(tmp_path, POOL)
    folder.open()
    folder.close()
    assert StateDir(tmp_path, OTHER_POOL).read_known() == frozenset()
    assert folder.read_known() == {'c1', 'c2'}
    assert folder.read_confirmed_mappings() == {'c2'}
    folder.write_known([C1])
    assert json.loads((tmp_path / 'known.json').read_text()) == ['c1']
    assert StateDir(tmp_path, POOL).read_confirmed_mappings() == {'c2'}


def test_only_the_owner_may_read_the_files(tmp_path: pathlib.Path) -> None:
    """No other user can read the token of the lock."""
    (tmp_path / 'home_lock.json.new').write_text('a write that was cut short')
    StateDir(tmp_path, POOL).write_home_lock(C1, TOKEN)
    mode = (tmp_path / 'home_lock.json').stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_marks_of_forgotten_hosts_outlive_the_agent(
    tmp_path: pathlib.Path,
) -> None:
    """They are read again, and a broken file or one of a pool is ignored."""
    state = StateDir(tmp_path, 'pool')
    state.open()
    assert state.read_marks() == ()
    assert state.write_marks(((Host('c2'), 1), (Host('c3'), 2)))
    state.close()
    state = StateDir(tmp_path, 'pool')
    state.open()
    assert state.read_marks() == (('c2', 1), ('c3', 2))
    (tmp_path / 'forgotten.json').write_text('[1]')
    assert state.read_marks() == ()
    assert state.write_marks(((Host('c2'), 1),))
    state.close()
    other = StateDir(tmp_path, 'other pool')
    other.open()
    assert other.read_marks() == ()
    other.close()


def test_longest_term_outlives_the_agent(tmp_path: pathlib.Path) -> None:
    """It is read again; a broken file or one of another pool is ignored."""
    state = StateDir(tmp_path, POOL)
    assert state.read_longest_term_s() == 0.0
    assert state.write_longest_term(40)
    assert StateDir(tmp_path, POOL).read_longest_term_s() == 40.0
    assert StateDir(tmp_path, OTHER_POOL).read_longest_term_s() == 0.0
    for broken in ('', '[40.0]', '"40"'):
        (tmp_path / 'longest_term.json').write_text(broken)
        assert state.read_longest_term_s() == 0.0


def test_count_of_deaths_is_read_until_it_is_over(
    tmp_path: pathlib.Path,
) -> None:
    """It is over when the agent has served well or was stopped."""
    folder = StateDir(tmp_path, POOL)
    assert folder.read_deaths_count() == 0
    assert folder.write_deaths_count(3)
    assert StateDir(tmp_path, OTHER_POOL).read_deaths_count() == 3
    for _ in range(2):
        assert folder.write_deaths_count(0)
        assert folder.read_deaths_count() == 0


@pytest.mark.parametrize('content', ['', '{', '[]', '2.5', '"3"', 'null'])
def test_a_damaged_count_of_deaths_counts_as_none(
    tmp_path: pathlib.Path, content: str
) -> None:
    """The agent must not keep off its host because of it."""
    (tmp_path / 'deaths.json').write_text(content)
    assert StateDir(tmp_path, POOL).read_deaths_count() == 0


def test_count_of_deaths_on_a_full_disk(tmp_path: pathlib.Path) -> None:
    """It does not grow there, and an agent that serves well removes it."""
    folder = StateDir(tmp_path, POOL)
    assert folder.write_deaths_count(2)
    (tmp_path / 'deaths.json.new').mkdir()  # No file can be written.
    assert not folder.write_deaths_count(3)
    assert folder.read_deaths_count() == 2
    assert folder.write_deaths_count(0)
    assert folder.read_deaths_count() == 0


def test_count_of_deaths_that_cannot_be_removed(
    tmp_path: pathlib.Path,
) -> None:
    """The agent goes on, and tries it again."""
    (tmp_path / 'deaths.json').mkdir()
    folder = StateDir(tmp_path, POOL)
    assert not folder.write_deaths_count(0)
    (tmp_path / 'deaths.json').rmdir()
    assert folder.write_deaths_count(0)
