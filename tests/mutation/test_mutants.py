# SPDX-License-Identifier: Apache-2.0
"""Which changes of a source file are mutants, and what they look like."""

import ast

import pytest

from tests.mutation.__main__ import read_excused
from tests.mutation.mutants import find_mutants


def _texts(source: str) -> set[str]:
    """Return the changed source texts, without the common end."""
    found = find_mutants('a.py', source)
    for mutant in found:
        ast.parse(mutant.apply())
    return {mutant.apply().removesuffix('\n') for mutant in found}


@pytest.mark.parametrize(
    ('source', 'changed'),
    [
        ('x = a < b', {'x = (a <= b)', 'x = (a >= b)'}),
        ('x = a is None', {'x = (a is not None)'}),
        ('x = a and b', {'x = (a or b)'}),
        ('x = not a', {'x = (a)'}),
        ('x = a + b', {'x = (a - b)'}),
        ('x = min(a, b)', {'x = (max(a, b))'}),
        ('x = 0', {'x = 1'}),
        ('x = 30.0', {'x = 61.0'}),
        ('x = True', {'x = False'}),
        ('a.x = b', {'pass'}),
        ('x += y', {'pass'}),
        ('f(x)', {'pass'}),
        ("raise ValueError('no')", {'pass'}),
    ],
)
def test_each_kind_of_change(source: str, changed: set[str]) -> None:
    """One expression or one statement is replaced."""
    assert _texts(source) == changed


def test_conditions_are_negated() -> None:
    """That of an ``if``, and those of a comprehension."""
    assert 'if (not (a)):\n    x = y' in _texts('if a:\n    x = y\n')
    assert _texts('x = [a for a in b if a]') == {
        'x = [a for a in b if (not (a))]'
    }


def test_result_is_not_returned() -> None:
    """A value becomes None; a bare ``return`` and a constant do not."""
    source = 'def f():\n    return a\n'
    assert _texts(source) == {'def f():\n    return None'}
    assert _texts('def f():\n    return\n') == set()


@pytest.mark.parametrize(
    'source',
    [
        '"""Three 3 nodes."""',
        "LOG.info('1 node', 1 + 1)",
        'x: Literal[1]',
        "x = f'{a + 1}'",
        '@attrs.define(eq=False)\nclass A:\n    """A."""\n',
    ],
)
def test_what_is_no_behaviour_is_left_alone(source: str) -> None:
    """Docstrings, log messages, annotations and decorators."""
    assert _texts(source) == set()


def test_difference_has_the_changed_lines_only() -> None:
    """Offsets are bytes, so a character of several bytes moves nothing."""
    (mutant,) = find_mutants('a.py', "s = 'é …'\nx = a + b\n")
    assert mutant.diff().splitlines()[2:] == [
        '@@ -2 +2 @@',
        '-x = a + b',
        '+x = (a - b)',
    ]


def test_excused_changes_have_a_reason() -> None:
    """A paragraph is a path, the changed lines, and the reason."""
    text = (
        '# A comment.\n\na.py\n-    x = 1\n+    x = 3\nA choice,\nno rule.\n'
    )
    assert read_excused(text) == {
        ('a.py', '- x = 1', '+ x = 3'): 'A choice, no rule.'
    }
