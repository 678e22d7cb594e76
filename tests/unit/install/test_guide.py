# SPDX-License-Identifier: Apache-2.0
"""The commands and files that the guide names exist."""

import importlib
import importlib.metadata
import inspect
import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.unit.install.files import (
    PAGES,
    ROOT,
    commands,
    containerfile,
    quoted,
)

_OURS = re.compile('ironic-compute(ctl|-status|-worker)?')


def _typed() -> Iterator[list[str]]:
    """Yield all commands of all pages, also those within a sentence."""
    for page in sorted(PAGES.glob('*.rst')):
        yield from commands(page)
        for text in quoted(page):
            if re.match(r'[a-z-]+ ', text):
                yield text.split()


def _of(program: str) -> list[list[str]]:
    """Return the arguments of each call of a program, also in containers."""
    found = []
    for words in _typed():
        for at, word in enumerate(words):
            if word.rpartition('/')[2] == program and at + 1 < len(words):
                found.append(words[at + 1 :])
    return found


def _console_scripts() -> set[str]:
    points = importlib.metadata.distribution('ironic-compute').entry_points
    return {p.name for p in points if p.group == 'console_scripts'}


def test_programs_of_ours_exist() -> None:
    """Each program of this project is a console script."""
    named = {
        name
        for words in _typed()
        for name in (word.rpartition('/')[2] for word in words)
        if _OURS.fullmatch(name)
    }
    assert len(named) >= 3
    assert named <= _console_scripts()


def _parse_computectl(call: list[str]) -> None:
    """Parse a call as the program does it; exit if it is wrong."""
    ctl = importlib.import_module('ironic_compute.cmd.ctl')
    app = ctl.ControlApp()
    _, rest = app.parser.parse_known_args(call)
    command, name, arguments = app.command_manager.find_command(rest)
    parser = command(app, None).get_parser(' '.join(name))
    assert parser.parse_args(arguments)


def test_computectl_has_the_commands() -> None:
    """Each call of ironic-computectl parses as the program does it."""
    calls = _of('ironic-computectl')
    assert len(calls) > 5
    for call in calls:
        _parse_computectl(call)


def test_computectl_has_the_commands_of_the_operator() -> None:
    """So do those in the pages about operation, with root's prompt.

    Only root and Nova's user may read the configuration.
    """
    count = 0
    for page in sorted((PAGES.parent / 'admin').glob('*.rst')):
        for words in commands(page):
            if words[0] == 'ironic-computectl':
                _parse_computectl(words[1:])
                assert f'$ {words[0]}' not in page.read_text(), page.name
                count += 1
    assert count > 10


def test_status_has_the_command() -> None:
    """ironic-compute-status has one command, with two words."""
    calls = _of('ironic-compute-status')
    assert calls
    assert all(call[:2] == ['upgrade', 'check'] for call in calls)


def test_nova_manage_has_the_commands() -> None:
    """Category, command and options are those of Nova's own source."""
    manage = importlib.import_module('nova.cmd.manage')
    calls = _of('nova-manage')
    assert {call[1] for call in calls} == {
        'discover_hosts',
        'ironic_compute_node_move',
    }
    for category, name, *arguments in calls:
        method = getattr(manage.CATEGORIES[category], name)
        known = {word for args, _ in method.args for word in args}
        assert {w for w in arguments if w.startswith('--')} <= known
        assert inspect.getdoc(method) is not None or known


def test_the_node_moves_from_a_host_that_is_down() -> None:
    """The way back marks hosts as down, which Nova's command demands."""
    manage = importlib.import_module('nova.cmd.manage')
    command = manage.CATEGORIES['db'].ironic_compute_node_move
    assert 'not source_service.forced_down' in inspect.getsource(command)
    page = [' '.join(words) for words in commands(PAGES / 'go-back.rst')]
    down = page.index('openstack compute service set --down c2 nova-compute')
    (move,) = (line for line in page if 'ironic_compute_node_move' in line)
    assert down < page.index(move)


@pytest.mark.parametrize(
    'page', sorted(PAGES.glob('*.rst')), ids=lambda page: page.name
)
def test_files_of_the_repository_exist(page: pathlib.Path) -> None:
    """A path below contrib, etc or the root that a page names is there."""
    text = page.read_text()
    named = re.findall(r'literalinclude:: \.\./\.\./\.\./(\S+)', text)
    words = [*(w for each in quoted(page) for w in each.split())]
    words += [w for each in commands(page) for w in each]
    named += [w for w in words if re.match('(contrib/|constraints-)', w)]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_images_have_the_arguments_of_their_builds() -> None:
    """Each --build-arg is an ARG of the Containerfile that is built."""
    builds = [call for call in _of('podman') if call[0] == 'build']
    assert len(builds) == 2
    for call in builds:
        path = ROOT / call[-1] / 'Containerfile'
        if '-f' in call:
            path = ROOT / call[call.index('-f') + 1]
        given = [w for w in call if re.match('[A-Z]+=', w)]
        known = {
            rest.partition('=')[0]
            for instruction, rest in containerfile(path)
            if instruction == 'ARG'
        }
        assert given
        assert {each.partition('=')[0] for each in given} <= known
