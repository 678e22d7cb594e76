# SPDX-License-Identifier: Apache-2.0
"""A process notices that the files of its modules have changed."""

import importlib
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ironic_compute.worker.loaded_files import LoadedFiles

_NAME = 'module_of_this_test'


@pytest.fixture
def module(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pathlib.Path]:
    """The file of a module that this process has loaded."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / f'{_NAME}.py'
    path.write_text('release = 1')
    importlib.import_module(_NAME)
    yield path
    del sys.modules[_NAME]


def _files() -> LoadedFiles:
    """Return the loaded files, none of them changed meanwhile."""
    return LoadedFiles(since_s=time.time() + 60.0)


def test_files_that_nobody_touches_have_not_changed(
    module: pathlib.Path,
) -> None:
    """Nor have they if the file is read, or another module is loaded."""
    files = _files()
    module.read_text()
    assert not files.have_changed()


def _rewrite(path: pathlib.Path) -> None:
    path.write_text('release = 22')


def _replace_with_its_time(path: pathlib.Path) -> None:
    """Put another file in its place, as a package of a distribution does."""
    stat = path.stat()
    other = path.with_suffix('.new')
    other.write_text('release = 2')
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(path)


def _install_a_plugin(path: pathlib.Path) -> None:
    (path.parent / 'plugin-1.0.dist-info').mkdir()


@pytest.mark.parametrize(
    'change',
    [
        _rewrite,
        _replace_with_its_time,
        pathlib.Path.unlink,
        _install_a_plugin,
    ],
)
def test_upgrade_is_noticed(
    module: pathlib.Path, change: Callable[[pathlib.Path], None]
) -> None:
    """A module was changed, replaced, removed, or a package was added."""
    files = _files()
    change(module)
    assert files.have_changed()


def test_upgrade_while_modules_are_loaded_is_noticed(
    module: pathlib.Path,
) -> None:
    """The module may be of the new release, and an earlier one is not."""
    changed_s = module.stat().st_ctime
    assert LoadedFiles(since_s=changed_s).have_changed()
    assert not LoadedFiles(since_s=time.time() + 60.0).have_changed()
