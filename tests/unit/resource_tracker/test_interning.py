# SPDX-License-Identifier: Apache-2.0
"""Equal values are one object, and only equal ones."""

from resource_tracker import interning


def test_equal_sets_are_one() -> None:
    """Whoever made them."""
    one, other = (frozenset({'CUSTOM_A', name}) for name in ('B', 'B'))
    assert interning.names(one) is interning.names(other)
    assert interning.names(one) == {'CUSTOM_A', 'B'}


def test_equal_records_are_one() -> None:
    """In whatever order their fields come."""
    one = interning.record({'total': 1, 'reserved': 0})
    assert one is interning.record({'reserved': 0, 'total': 1})
    assert one == {'total': 1, 'reserved': 0}


def test_a_record_of_another_type_is_another() -> None:
    """Python takes 1, 1.0 and true for the same; JSON does not."""
    found = [interning.record({'total': one}) for one in (1, 1.0, True)]
    assert [type(each['total']) for each in found] == [int, float, bool]
