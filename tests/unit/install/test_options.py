# SPDX-License-Identifier: Apache-2.0
"""Each option in a file or page of the guide exists."""

import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.unit.install import options
from tests.unit.install.files import (
    CONTRIB,
    PAGES,
    ROOT,
    Ini,
    blocks,
    parse_ini,
    quoted,
    read_ini,
    read_yaml,
)

_OPTION = re.compile(r'\[(\w+)\] (\w+)(?: = .*)?')
_OSA = CONTRIB / 'openstack-ansible'
_IRONIC = CONTRIB / 'kolla-ansible' / 'config' / 'ironic.conf'


def _unknown(text: Ini, registry: options.Registry) -> list[str]:
    """Return the options that no program has."""
    return [
        f'[{section}] {name}'
        for section, values in text.items()
        for name in values
        if name not in registry.get(section, ())
    ]


def _pages() -> Iterator[pathlib.Path]:
    yield from sorted(PAGES.glob('*.rst'))


def _of_the_daemon() -> Iterator[tuple[str, Ini]]:
    for path in sorted(CONTRIB.rglob('*.conf')):
        if path not in (_IRONIC, CONTRIB / 'systemd' / 'venv.conf'):
            yield path.relative_to(ROOT).as_posix(), read_ini(path)
    overrides = read_yaml(_OSA / 'group_vars' / 'ironic_compute.yml')
    yield 'OpenStack-Ansible', overrides['nova_nova_conf_overrides']
    for page in _pages():
        for number, block in enumerate(blocks(page, 'ini'), 1):
            yield f'{page.name} {number}', parse_ini(block)


@pytest.mark.parametrize(
    'text',
    [pytest.param(text, id=name) for name, text in _of_the_daemon()],
)
def test_the_daemon_has_each_option_of_a_file(text: Ini) -> None:
    """Nova or this project registers it under this name and group."""
    assert text
    assert _unknown(text, options.of_the_daemon()) == []


def test_ironic_has_each_option_of_its_files() -> None:
    """Ironic registers what the guide puts into ironic.conf."""
    name = 'ironic_ironic_conf_overrides'
    overrides = read_yaml(_OSA / 'user_ironic_compute.yml')[name]
    assert read_ini(_IRONIC) == overrides
    names = [(group, name) for group in overrides for name in overrides[group]]
    wrong = ('DEFAULT', 'no_such_option')
    assert options.unknown_to_ironic([*names, wrong]) == [wrong]


@pytest.mark.parametrize('page', _pages(), ids=lambda page: page.name)
def test_options_in_the_text_exist(page: pathlib.Path) -> None:
    """``[group] option`` names an option of Nova, nova-manage or ours."""
    found = [_OPTION.fullmatch(text) for text in quoted(page)]
    named = [match.groups() for match in found if match is not None]
    registry = options.of_the_daemon()
    assert [n for n in named if n[1] not in registry.get(n[0], ())] == []


def test_an_unknown_option_would_be_found() -> None:
    """The registry does not know everything."""
    registry = options.of_the_daemon()
    wrong = {'coordination': {'backend_uri': ''}, 'DEFAULT': {'host': ''}}
    assert _unknown(wrong, registry) == ['[coordination] backend_uri']
