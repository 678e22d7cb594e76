# SPDX-License-Identifier: Apache-2.0
"""import-linter finds imports that the contracts in .importlinter forbid.

A contract whose module names are wrong would find nothing. Therefore each
test adds one forbidden import to a copy of the packages.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ('hashring', 'resource_tracker', 'ironic_compute')
_BIN = pathlib.Path(sys.executable).parent
LINT_IMPORTS = shutil.which(
    'lint-imports', path=f'{_BIN}{os.pathsep}{os.environ.get("PATH", "")}'
)
pytestmark = pytest.mark.skipif(
    LINT_IMPORTS is None, reason='import-linter is not installed'
)


@pytest.fixture(scope='module')
def tree(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a copy of the packages and their contracts."""
    copy = tmp_path_factory.mktemp('tree')
    for name in PACKAGES:
        ignore = shutil.ignore_patterns('__pycache__')
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    shutil.copy(ROOT / '.importlinter', copy)
    return copy


def _lint(tree: pathlib.Path) -> tuple[int, list[str]]:
    """Return import-linter's exit status and the broken contracts."""
    done = subprocess.run(
        [str(LINT_IMPORTS)],
        cwd=tree,
        env={**os.environ, 'PYTHONPATH': str(tree)},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    broken = [each for each in lines if each.endswith(' BROKEN')]
    return done.returncode, [each.removesuffix(' BROKEN') for each in broken]


def test_the_packages_keep_all_contracts(tree: pathlib.Path) -> None:
    """The unchanged copy has no forbidden import."""
    assert _lint(tree) == (0, [])


@pytest.mark.parametrize(
    ('path', 'statement', 'contract'),
    [
        (
            'hashring/ring.py',
            'import resource_tracker',
            'hashring and resource_tracker do not import each other',
        ),
        (
            'resource_tracker/node.py',
            'import nova',
            'Only ironic_compute imports Nova and Ironic',
        ),
        (
            'ironic_compute/nodes/records.py',
            'import ironic_compute.worker.executors',
            'A package of ironic_compute imports lower floors only',
        ),
        (
            'ironic_compute/agent/groups.py',
            'import nova',
            'The agent process never imports Nova',
        ),
        (
            'ironic_compute/driver/volumes.py',
            'import ironicclient',
            'Other packages use ironicclient only through ironic_api',
        ),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    tree: pathlib.Path, path: str, statement: str, contract: str
) -> None:
    """import-linter fails and names the contract."""
    file = tree / path
    source = file.read_text()
    file.write_text(f'{source}\n{statement}\n')
    try:
        status, broken = _lint(tree)
    finally:
        file.write_text(source)
    assert status == 1
    assert contract in broken
