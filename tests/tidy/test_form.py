# SPDX-License-Identifier: Apache-2.0
"""The form of the code: sizes as a ratchet, banned names, first lines."""

import ast
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ('hashring', 'resource_tracker', 'ironic_compute')
PROGRAMS = ('devstack', 'benchmarks')
FUNCTION_LINES_MAX = 60
# One idea may need 500 lines. A lower limit had pieces of full files moved to
# wherever there was space; the rooms in .importlinter say what belongs where.
FILE_LINES_MAX = 500
MEDIAN_LINES_MAX = 12

# What is longer today; an entry may only shrink or go.
LONG_FILES: dict[str, int] = {}

# Banned name -> where it is allowed, and what to use instead.
BANNED = {
    r'\btime\.(time|sleep|monotonic)\(': (
        {'hashring/clock.py'},
        'take a Clock as an argument',
    ),
    r'\bdatetime\.(now|utcnow)\(': (set(), 'take a Clock as an argument'),
    r'\brandom\.(random|choice|uniform|randint)\(': (
        set(),
        'take a random.Random as an argument',
    ),
    r'^\s*(import|from) eventlet': (set(), "Nova's choice of concurrency"),
    r'\bmock\.patch': (set(), 'a fake that passes the contract tests'),
}


def sources(*folders):
    """All Python files below these folders of the repository."""
    return [p for f in folders for p in sorted((ROOT / f).rglob('*.py'))]


def name(path):
    """A file's name as the lists above have it."""
    return path.relative_to(ROOT).as_posix()


def functions(path):
    """All functions of a file, with their number of lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


@pytest.mark.parametrize('path', sources(*PACKAGES, *PROGRAMS), ids=name)
def test_files_and_functions_are_short(path):
    """A file fits a reader's patience, a function fits the screen."""
    lines = len(path.read_text().splitlines())
    assert lines <= LONG_FILES.get(name(path), FILE_LINES_MAX)
    for function, length in functions(path):
        assert length <= FUNCTION_LINES_MAX, function


def test_ratchet_names_only_what_is_still_long():
    """What has become short leaves the list of old sins."""
    for file_name in LONG_FILES:
        lines = len((ROOT / file_name).read_text().splitlines())
        assert lines > FILE_LINES_MAX, file_name


@pytest.mark.parametrize('package', PACKAGES)
def test_ordinary_function_is_small(package):
    """What makes code pleasant is the ordinary function."""
    lengths = sorted(
        length for path in sources(package) for _, length in functions(path)
    )
    assert lengths[len(lengths) // 2] <= MEDIAN_LINES_MAX


@pytest.mark.parametrize('path', sources(*PACKAGES), ids=name)
def test_banned_names_are_not_used(path):
    """Time and chance are arguments; our own code is not patched."""
    text = path.read_text()
    for pattern, (allowed, instead) in BANNED.items():
        if name(path) not in allowed:
            found = re.search(pattern, text, re.MULTILINE)
            assert found is None, f'{found.group()}: use {instead}'


@pytest.mark.parametrize(
    'path',
    [p for p in sources(*PACKAGES, *PROGRAMS, 'tests') if p.read_text()],
    ids=name,
)
def test_file_opens_with_licence_and_promise(path):
    """First the licence, then what the module is for."""
    text = path.read_text()
    assert text.startswith('# SPDX-License-Identifier: Apache-2.0\n')
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize('path', sources('tests'), ids=name)
def test_each_test_says_what_it_holds(path):
    """A test opens with one sentence."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith('test_'):
            assert ast.get_docstring(node), node.name


def test_tests_do_not_patch_our_modules():
    """A test hands our code a fake; it never reaches into a module."""
    ours = '|'.join(PACKAGES)
    patched = re.compile(rf'(mock\.patch|setattr)\w*\(\s*.?({ours})\b')
    for path in sources('tests'):
        found = patched.search(path.read_text())
        assert found is None, f'{name(path)}: {found.group()}'


def test_pre_commit_uses_the_pinned_versions():
    """What is checked before a commit is what CI checks."""
    pins = (ROOT / 'constraints-nova34.txt').read_text().splitlines()
    hooks = (ROOT / '.pre-commit-config.yaml').read_text()
    used = re.findall(r'\[(\S+==\S+)\]', hooks)
    assert used
    assert set(used) <= set(pins)


def parts(folder):
    """All that the code of a package is made of."""
    for path in sources(folder):
        yield from ast.walk(ast.parse(path.read_text()))


def sentences(nodes):
    """The strings among these, an ellipsis for each keyed argument."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r'%\(\w+\)[.\d]*\w', '…', node.value)


def alarms(folder):
    """What a package logs as a warning or an error, without a traceback."""
    for node in parts(folder):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            'LOG.warning',
            'LOG.error',
            'LOG.log',
            'retried',
        ):
            yield from sentences(node.args)


def explained():
    """The messages that the manual explains."""
    manual = (ROOT / 'doc/source/admin/messages.rst').read_text()
    terms = [line for line in manual.splitlines() if line.startswith('``')]
    return {title for line in terms for title in re.findall('``(.+?)``', line)}


def test_messages_of_the_manual_are_in_the_code():
    """The manual explains only what the daemons can say."""
    said = {text for p in PACKAGES for text in sentences(parts(p))}
    assert len(explained()) > 20
    assert explained() - said == set()


def test_alarms_are_in_the_manual():
    """Who is woken by a warning finds what it means and what to do."""
    said = {text for p in PACKAGES for text in alarms(p)}
    # What is only put together there is explained where it is said.
    whole = {text for text in said if not text.startswith('…')}
    assert len(whole) > 20
    assert whole - explained() == set()


def test_only_pictures_are_not_text():
    """Nothing that was built or fetched comes in with a commit."""
    listed = subprocess.run(
        ['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, check=True
    )
    files = [ROOT / name for name in listed.stdout.decode().split('\0')[:-1]]
    binary = {f.suffix for f in files if b'\0' in f.read_bytes()}
    assert binary <= {'.png'}


def test_tests_of_the_old_bugs_exist():
    """Each row of the page names tests, and each of them is there."""
    page = (ROOT / 'doc/source/contributor/old-bugs.rst').read_text()
    rows = page.split('   * - ')[1:]
    there = {f for path in sources('tests') for f, _ in functions(path)}
    assert len(rows) > 40
    for row in rows:
        named = re.findall(r'``(test_\w+)``', row)
        assert named or row.startswith('Bug\n'), row
        assert set(named) <= there, set(named) - there


def test_old_bugs_are_on_their_page():
    """A test that is named after a bug of ownership has its row."""
    page = (ROOT / 'doc/source/contributor/old-bugs.rst').read_text()
    for folder in ('hashring', 'ironic_compute'):
        path = ROOT / 'tests/unit' / folder / 'test_old_bugs.py'
        for function, _ in functions(path):
            assert not function.startswith('test_') or function in page
