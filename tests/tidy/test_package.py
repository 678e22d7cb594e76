# SPDX-License-Identifier: Apache-2.0
"""The package: a licence for each file, types, metadata, no warnings."""

import configparser
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tomllib
import warnings

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ('hashring', 'resource_tracker', 'ironic_compute')
_HEADER = re.compile(
    r'^(#|\.\.|//|/\*) SPDX-License-Identifier: Apache-2\.0( \*/)?$', re.M
)


def _tracked() -> list[str]:
    listed = subprocess.run(
        ['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, check=True
    )
    names = listed.stdout.decode().split('\0')[:-1]
    return [name for name in names if (ROOT / name).is_file()]


def _annotated() -> re.Pattern[str]:
    """Return what REUSE.toml says about paths, as one expression.

    ``*`` matches within a folder, and ``**`` across folders.
    """
    table = tomllib.loads((ROOT / 'REUSE.toml').read_text())
    paths = [path for each in table['annotations'] for path in each['path']]
    escaped = [re.escape(path) for path in paths]
    globs = [
        each.replace(r'\*\*', '.*').replace(r'\*', '[^/]*') for each in escaped
    ]
    return re.compile('|'.join(globs))


def _has_header(name: str) -> bool:
    opening = (ROOT / name).read_bytes()[:400].decode(errors='replace')
    return _HEADER.search(opening) is not None


def test_each_file_has_a_licence() -> None:
    """It opens with the licence, or REUSE.toml names it."""
    annotated = _annotated()
    without = [
        name
        for name in _tracked()
        if not annotated.fullmatch(name) and not _has_header(name)
    ]
    assert without == []


def test_reuse_names_only_what_is_there() -> None:
    """A path of REUSE.toml that matches no file is an old one."""
    table = tomllib.loads((ROOT / 'REUSE.toml').read_text())
    for annotation in table['annotations']:
        assert annotation['SPDX-License-Identifier'] == 'Apache-2.0'
        for path in annotation['path']:
            assert list(ROOT.glob(path.replace('**.', '**/*.'))), path


def test_packages_have_types() -> None:
    """A type checker of somebody else reads our annotations."""
    for package in PACKAGES:
        assert (ROOT / package / 'py.typed').read_text() == ''


def _metadata() -> configparser.SectionProxy:
    parser = configparser.ConfigParser()
    parser.read(ROOT / 'setup.cfg')
    return parser['metadata']


def test_metadata_claims_no_other_project() -> None:
    """Nobody is sent to an address that does not belong to this project."""
    text = '\n'.join(_metadata().values())
    for word in ('openstack.org', 'opendev.org', 'example'):
        assert word not in text


def test_classifiers_name_the_versions_of_python_that_are_tested() -> None:
    """The newest has a job, and the oldest is the minimum."""
    text = _metadata()['classifier']
    versions = re.findall(r'Python :: (3\.\d+)', text)
    assert f'>={versions[0]}' == _metadata()['python_requires']
    tox = (ROOT / 'tox.ini').read_text()
    for version in versions:
        assert f'py{version.replace(".", "")}' in tox


def test_entry_points_are_in_the_package() -> None:
    """Each console script names a module and a function that exist."""
    scripts = [
        point
        for point in importlib.metadata.distribution(
            'ironic-compute'
        ).entry_points
        if point.group == 'console_scripts'
    ]
    assert len(scripts) == 4
    for point in scripts:
        path = ROOT / (point.module.replace('.', '/') + '.py')
        assert f'\ndef {point.attr}(' in path.read_text()


@pytest.mark.parametrize('package', PACKAGES)
def test_source_compiles_without_a_warning(package: str) -> None:
    """Invalid escapes and the like would be errors in a later Python."""
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for path in (ROOT / package).rglob('*.py'):
            compile(path.read_text(), str(path), 'exec', dont_inherit=True)


_IMPORT_ALL = """
import importlib, pathlib, sys, warnings
ours = r'(hashring|resource_tracker|ironic_compute)(\\.|$)'
warnings.filterwarnings('error', module=ours)
for package in ours[1:ours.index(')')].split('|'):
    for path in sorted(pathlib.Path(package).rglob('*.py')):
        name = '.'.join(path.with_suffix('').parts)
        importlib.import_module(name.removesuffix('.__init__'))
"""


def test_import_of_all_modules_gives_no_warning_of_ours() -> None:
    """Warnings of other projects are theirs; one that we cause is an error."""
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', _IMPORT_ALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
