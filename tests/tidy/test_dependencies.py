# SPDX-License-Identifier: Apache-2.0
"""requirements.txt names exactly the distributions that are imported."""

import ast
import importlib.metadata
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ('hashring', 'resource_tracker', 'ironic_compute')


def _normalize(distribution: str) -> str:
    """Return a distribution's name in the form that pip compares."""
    return re.sub(r'[-_.]+', '-', distribution).lower()


def _required() -> set[str]:
    lines = (ROOT / 'requirements.txt').read_text().splitlines()
    names = (re.match(r'[\w.-]+', line) for line in lines)
    return {_normalize(name[0]) for name in names if name is not None}


def _imported_modules(file: pathlib.Path) -> set[str]:
    """Return the top-level modules of all absolute imports of a file."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module))
    return {name.partition('.')[0] for name in names}


def _imported() -> set[str]:
    """Return the distributions that the three packages import."""
    files = (f for each in PACKAGES for f in (ROOT / each).rglob('*.py'))
    modules = set().union(*map(_imported_modules, files))
    modules -= {*PACKAGES, *sys.stdlib_module_names}
    distributions = importlib.metadata.packages_distributions()
    assert modules <= distributions.keys()
    return {_normalize(distributions[module][0]) for module in modules}


def test_each_imported_distribution_is_required() -> None:
    """A distribution must not come only as a dependency of another."""
    assert _imported() - _required() == set()


def test_each_required_distribution_is_imported() -> None:
    """A line whose last import was removed is removed, too."""
    assert _required() - _imported() == set()
