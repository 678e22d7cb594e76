# SPDX-License-Identifier: Apache-2.0
"""Quick values equal the values that they replace."""

import dataclasses
from typing import Any

import pytest
from nova.objects import base
from nova.objects.compute_node import ComputeNode

from tests.simulation import quick


class _Pair:
    one: int
    other: str = 'b'


def _make(make: Any) -> Any:
    fields = {**vars(_Pair), '__module__': __name__}
    fields.pop('__dict__')
    fields.pop('__weakref__')
    return make(frozen=True)(type('Pair', (), fields))


@pytest.mark.parametrize('make', [dataclasses.dataclass, quick.dataclass])
def test_value_is_equal_and_hashable(make: Any) -> None:
    """Equality, hash and repr are those of a frozen dataclass."""
    pair = _make(make)
    value = dataclasses.replace(pair(1), other='c')
    assert value == pair(1, 'c') != pair(1)
    assert hash(value) == hash((1, 'c'))
    assert repr(value) == "Pair(one=1, other='c')"


def test_quick_dataclass_is_not_frozen() -> None:
    """A field of a quick value is set without a call."""
    pair = _make(quick.dataclass)
    assert pair.__setattr__ is object.__setattr__


class _Loading(base.NovaObject):  # type: ignore[misc]
    fields = ComputeNode.fields

    def obj_load_attr(self, attrname: str) -> None:
        setattr(self, f'_obj_{attrname}', f'{attrname} loaded')


def test_quick_field_is_read_or_loaded() -> None:
    """A field that is set is read, and another one is loaded."""
    assert quick.reader('host')(ComputeNode(host='c1')) == 'c1'
    assert quick.reader('host')(_Loading()) == 'host loaded'
