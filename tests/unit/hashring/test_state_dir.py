# SPDX-License-Identifier: Apache-2.0
"""The state directory: one agent, and files that are whole or absent."""

import pathlib

import pytest

from hashring import errors
from hashring.group import LockToken
from hashring.ring import Host
from hashring.state_dir import StateDir

C1 = Host('c1')
TOKEN = LockToken('bG9jaw==')


def test_two_on_one_folder_are_refused(tmp_path: pathlib.Path) -> None:
    """A second agent on the same directory is refused."""
    first, second = StateDir(tmp_path), StateDir(tmp_path)
    first.open()
    with pytest.raises(errors.StateDirRefused, match='Another agent'):
        second.open()
    first.close()
    second.open()
    second.close()


def test_an_unwritable_folder_is_refused(tmp_path: pathlib.Path) -> None:
    """An unwritable path is refused, and the error names the option."""
    (tmp_path / 'file').write_text('')
    with pytest.raises(errors.StateDirRefused, match='state_path'):
        StateDir(tmp_path / 'file' / 'below').open()


def test_what_is_written_is_read(tmp_path: pathlib.Path) -> None:
    """The token, known hosts and confirmed mappings are read again."""
    StateDir(tmp_path).write_home_lock(C1, TOKEN)
    StateDir(tmp_path).write_known([Host('c2'), Host('c1')])
    StateDir(tmp_path).write_confirmed_mappings([Host('c2')])
    assert StateDir(tmp_path).read_home_lock(C1) == TOKEN
    assert StateDir(tmp_path).read_known() == {'c1', 'c2'}
    assert StateDir(tmp_path).read_confirmed_mappings() == {'c2'}


@pytest.mark.parametrize('content', ['', '{', '[]', '{"home": "c1"}', 'null'])
def test_a_damaged_file_counts_as_absent(
    tmp_path: pathlib.Path, content: str
) -> None:
    """A damaged file counts as absent."""
    (tmp_path / 'home_lock.json').write_text(content)
    (tmp_path / 'known.json').write_text(content)
    (tmp_path / 'vouched.json').write_text(content)
    assert StateDir(tmp_path).read_home_lock(C1) is None
    assert StateDir(tmp_path).read_known() == frozenset()
    assert StateDir(tmp_path).read_confirmed_mappings() == frozenset()


def test_a_file_that_cannot_be_replaced_stays(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed write keeps the old file and is logged once."""
    folder = StateDir(tmp_path)
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
    folder = StateDir(tmp_path)
    folder.write_home_lock(C1, TOKEN)
    assert folder.read_home_lock(Host('c9')) is None
