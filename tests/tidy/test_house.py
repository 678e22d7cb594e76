# SPDX-License-Identifier: Apache-2.0
"""The map of the code in the manual agrees with the code."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location('house', ROOT / 'doc/house.py')
house = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(house)

FILES = [
    path
    for package in house.PACKAGES
    for room in house.rooms(ROOT / package)
    for path in (room / '__init__.py', *house.modules(room))
]


def test_map_and_picture_agree_with_the_code():
    """The page lists each module with its sentence; see doc/house.py."""
    stale = [p for p, text in house.wanted().items() if p.read_text() != text]
    assert not stale, 'run "python doc/house.py"'


@pytest.mark.parametrize(
    'path', FILES, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_first_line_is_a_sentence(path):
    """A map of half sentences would be of no use."""
    first = house.sentence(path)
    assert first.endswith('.')
    assert len(first) > 20


def test_walks_name_files_that_exist():
    """Each path in the four walks leads to a file."""
    page = house.PAGE.read_text().partition(house.MAP_BEGINS)[0]
    paths = {
        word.strip('`,.:;()')
        for word in page.split()
        if '/' in word and word.strip('`,.:;()').endswith('.py')
    }
    assert len(paths) > 20
    assert [p for p in sorted(paths) if not (ROOT / p).exists()] == []


def test_picture_has_all_rooms():
    """A room that no floor names would escape the law between the rooms."""
    named = {name for floor in house.floors() for name in floor}
    rooms = house.rooms(ROOT / 'ironic_compute')[1:]
    assert {room.name for room in rooms} <= named
