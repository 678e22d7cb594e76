# SPDX-License-Identifier: Apache-2.0
"""The sentences of what is refused."""

import pathlib
import re

import pytest

from ironic_compute.manager.unsupported import REASONS, UnsupportedOperations

MANUAL = (
    pathlib.Path(__file__).resolve().parents[4]
    / 'doc/source/admin/supported.rst'
)


@pytest.mark.parametrize('name', REASONS)
def test_manual_has_each_sentence(name):
    """What a user reads is in the manual, word for word."""
    manual = re.sub(r'\s+', ' ', MANUAL.read_text())
    assert REASONS[name] in manual


@pytest.mark.parametrize('name', REASONS)
def test_sentence_says_what_to_do_instead(name):
    """One sentence, with the way out after the semicolon."""
    assert REASONS[name].count(';') == 1
    assert '.' not in REASONS[name]


@pytest.mark.parametrize('name', sorted(set(REASONS) - {'evacuate'}))
def test_each_sentence_belongs_to_a_method(name):
    """No sentence is left over that nothing says."""
    assert callable(getattr(UnsupportedOperations, name))
