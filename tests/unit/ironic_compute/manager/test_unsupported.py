# SPDX-License-Identifier: Apache-2.0
"""The reasons for unsupported operations are in the manual."""

import pathlib
import re

import pytest

from ironic_compute.manager.unsupported import REASONS, UnsupportedOperations

MANUAL = (
    pathlib.Path(__file__).resolve().parents[4]
    / 'doc/source/admin/supported.rst'
)


@pytest.mark.parametrize('name', REASONS)
def test_manual_has_each_reason(name):
    """The manual has the reason of each refusal, word for word."""
    manual = re.sub(r'\s+', ' ', MANUAL.read_text())
    assert REASONS[name] in manual


@pytest.mark.parametrize('name', REASONS)
def test_each_reason_has_an_alternative(name):
    """A reason is one sentence with an alternative after a semicolon."""
    assert REASONS[name].count(';') == 1
    assert '.' not in REASONS[name]


@pytest.mark.parametrize('name', sorted(set(REASONS) - {'evacuate'}))
def test_each_reason_belongs_to_a_method(name):
    """Each reason belongs to a method that refuses an operation."""
    assert callable(getattr(UnsupportedOperations, name))
