# SPDX-License-Identifier: Apache-2.0
"""The state folder: one agent, files that are whole or absent."""

import pathlib

import pytest

from hashring import errors
from hashring.group import Boot
from hashring.ring import Host
from hashring.state import BootRecord, StateFolder, previous_life

RECORD = BootRecord(Host('c1'), Boot('b1'), 4711, holds_home=True)


def test_two_on_one_folder_are_refused(tmp_path: pathlib.Path) -> None:
    """The second agent on a folder ends with a sentence, at once."""
    first, second = StateFolder(tmp_path), StateFolder(tmp_path)
    first.open()
    with pytest.raises(errors.StateFolderRefused, match='Another agent'):
        second.open()
    first.close()
    second.open()
    second.close()


def test_an_unwritable_folder_is_refused(tmp_path: pathlib.Path) -> None:
    """A path that cannot be a folder names the option."""
    (tmp_path / 'file').write_text('')
    with pytest.raises(errors.StateFolderRefused, match='state_path'):
        StateFolder(tmp_path / 'file' / 'below').open()


def test_what_is_written_is_read(tmp_path: pathlib.Path) -> None:
    """Boot, known hosts and operators' words survive the process."""
    StateFolder(tmp_path).write_boot(RECORD)
    StateFolder(tmp_path).write_known([Host('c2'), Host('c1')])
    StateFolder(tmp_path).write_vouched([Host('c2')])
    assert StateFolder(tmp_path).read_boot() == RECORD
    assert StateFolder(tmp_path).read_known() == {'c1', 'c2'}
    assert StateFolder(tmp_path).read_vouched() == {'c2'}


@pytest.mark.parametrize('content', ['', '{', '[]', '{"home": 1}', 'null'])
def test_a_damaged_file_counts_as_absent(
    tmp_path: pathlib.Path, content: str
) -> None:
    """Nonsense in a file never stops an agent."""
    (tmp_path / 'boot.json').write_text(content)
    (tmp_path / 'known.json').write_text(content)
    (tmp_path / 'vouched.json').write_text(content)
    assert StateFolder(tmp_path).read_boot() is None
    assert StateFolder(tmp_path).read_known() == frozenset()
    assert StateFolder(tmp_path).read_vouched() == frozenset()


def test_a_record_that_cannot_be_replaced_is_removed(
    tmp_path: pathlib.Path,
) -> None:
    """Rather no record than one that still claims the home's lock."""
    folder = StateFolder(tmp_path)
    folder.write_boot(RECORD)
    (tmp_path / 'boot.json.new').mkdir()
    folder.write_boot(BootRecord(Host('c1'), Boot('b1'), 1, False))
    assert folder.read_boot() is None


@pytest.mark.parametrize(
    ('home', 'holds', 'expected'),
    [('c1', True, True), ('c1', False, False), ('c9', True, False)],
)
def test_only_a_life_that_held_this_home_matters(
    tmp_path: pathlib.Path, home: str, holds: bool, expected: bool
) -> None:
    """Another home, or a lock let go of, gives no right to break one."""
    folder = StateFolder(tmp_path)
    folder.write_boot(BootRecord(Host('c1'), Boot('b1'), 1, holds))
    assert (previous_life(folder, Host(home)) is not None) is expected
