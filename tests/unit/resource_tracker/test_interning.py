# SPDX-License-Identifier: Apache-2.0
"""Interning: equal values become one object, and only equal ones."""

from resource_tracker import interning


def test_equal_sets_are_one() -> None:
    """Two equal sets become the same object."""
    one, other = (frozenset({'CUSTOM_A', name}) for name in ('B', 'B'))
    assert interning.names(one) is interning.names(other)
    assert interning.names(one) == {'CUSTOM_A', 'B'}


def test_equal_records_are_one() -> None:
    """Two equal records become the same object in any order of fields."""
    one = interning.record({'total': 1, 'reserved': 0})
    assert one is interning.record({'reserved': 0, 'total': 1})
    assert one == {'total': 1, 'reserved': 0}


def test_a_record_of_another_type_is_another() -> None:
    """1, 1.0 and True stay different values, although they are equal."""
    found = [interning.record({'total': one}) for one in (1, 1.0, True)]
    assert [type(each['total']) for each in found] == [int, float, bool]
