# SPDX-License-Identifier: Apache-2.0
"""PyPI has a distribution with a package hashring: it must not go unnoticed.

Each test makes a folder as pip would, and a new interpreter imports the
commands.
"""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]
PACKAGES = ('ironic_compute', 'resource_tracker', 'hashring')


def _add_record(folder: pathlib.Path) -> None:
    """Make what pip writes about the other distribution."""
    info = folder / 'hashring-1.5.1.dist-info'
    info.mkdir()
    text = 'Metadata-Version: 2.1\nName: hashring\nVersion: 1.5.1\n'
    (info / 'METADATA').write_text(text)


def _import_commands(*folders: pathlib.Path) -> tuple[int, str]:
    """Return exit status and standard error of an import of the commands."""
    path = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, '-c', 'import ironic_compute.cmd, hashring.errors'],
        env={**os.environ, 'PYTHONPATH': path},
        cwd='/',
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


@pytest.fixture
def other(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a folder with the other distribution alone."""
    folder = tmp_path / 'other'
    (folder / 'hashring').mkdir(parents=True)
    (folder / 'hashring' / '__init__.py').write_text('HashRing = 1\n')
    _add_record(folder)
    return folder


def test_both_in_one_folder_are_refused(tmp_path: pathlib.Path) -> None:
    """Whoever came last has overwritten files of the other."""
    for package in PACKAGES:
        (tmp_path / package).symlink_to(ROOT / package)
    (tmp_path / 'hashring').unlink()
    (tmp_path / 'hashring').mkdir()
    for module in (ROOT / 'hashring').glob('*.py'):
        (tmp_path / 'hashring' / module.name).symlink_to(module)
    assert _import_commands(tmp_path) == (0, '')
    _add_record(tmp_path)
    status, sentence = _import_commands(tmp_path)
    assert status == 78
    assert sentence.startswith('ironic-compute: the distribution hashring')
    assert str(tmp_path / 'hashring') in sentence
    assert '"pip uninstall hashring"' in sentence
    assert 'Traceback' not in sentence


def test_the_other_one_found_first_is_refused(other: pathlib.Path) -> None:
    """Python would import its package, which lacks our modules."""
    status, sentence = _import_commands(other, ROOT)
    assert status == 78
    assert str(other / 'hashring') in sentence


def test_the_other_one_found_later_does_no_harm(other: pathlib.Path) -> None:
    """A distribution's Python has it, and our environment comes first."""
    assert _import_commands(ROOT, other) == (0, '')
