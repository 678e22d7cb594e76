# SPDX-License-Identifier: Apache-2.0
"""Reads the files of contrib and the pages of the installation guide."""

import configparser
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import jinja2
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONTRIB = ROOT / 'contrib'
PAGES = ROOT / 'doc' / 'source' / 'install'
REFERENCE = ROOT.parent / 'shared' / 'reference'

Ini = dict[str, dict[str, str]]


def parse_ini(text: str) -> Ini:
    """Return the sections of a file, [DEFAULT] like any other."""
    parser = configparser.RawConfigParser(
        default_section='none of these', strict=False, delimiters=('=',)
    )
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def read_ini(path: pathlib.Path) -> Ini:
    """Return the sections of a file."""
    return parse_ini(path.read_text())


def read_yaml(path: pathlib.Path) -> Any:
    """Return the one document of a file."""
    return yaml.safe_load(path.read_text())


def blocks(page: pathlib.Path, language: str) -> Iterator[str]:
    """Yield the code blocks of a page in one language."""
    lines = page.read_text().splitlines()
    for at, line in enumerate(lines):
        if line.strip() == f'.. code-block:: {language}':
            indent = len(line) - len(line.lstrip())
            yield textwrap.dedent('\n'.join(_body(lines[at + 1 :], indent)))


def _body(lines: list[str], indent: int) -> Iterator[str]:
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            return
        yield line


def commands(page: pathlib.Path) -> Iterator[list[str]]:
    """Yield the words of each command that a reader is told to type."""
    for block in blocks(page, 'console'):
        for line in block.splitlines():
            if line.startswith(('# ', '$ ')):
                yield line[2:].split()


def quoted(page: pathlib.Path) -> Iterator[str]:
    """Yield what a page has between double backticks, in one line each."""
    for text in re.findall('``(.+?)``', page.read_text(), re.DOTALL):
        yield ' '.join(text.split())


def render(template: str, **values: Any) -> str:
    """Render what Ansible would; a name that is not in ``values`` is empty."""
    environment = jinja2.Environment(undefined=jinja2.ChainableUndefined)
    environment.filters |= {
        'bool': lambda value: str(value).lower() in ('true', 'yes', '1'),
        'put_address_in_context': lambda address, _: address,
        'kolla_url': lambda *parts: 'http://url',
        'to_json': str,
    }
    return environment.from_string(template).render(**values)


def reference(*parts: str) -> pathlib.Path:
    """Return a file of another project; skip the test if it is not here."""
    path = REFERENCE.joinpath(*parts)
    if not path.exists():
        pytest.skip(f'the sources of {parts[0]} are not beside the repository')
    return path


def containerfile(path: pathlib.Path) -> list[tuple[str, str]]:
    """Return the instructions of a Containerfile with their arguments."""
    lines = [each for each in path.read_text().splitlines() if each.strip()]
    lines = [each for each in lines if not each.startswith('#')]
    assert not any(line.endswith('\\') for line in lines)
    words = [each.split(None, 1) for each in lines]
    return [(instruction, rest) for instruction, rest in words]
