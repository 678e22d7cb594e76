# SPDX-License-Identifier: Apache-2.0
"""Interning of ComputeNode rows: equal values of many rows share one object.

A worker keeps the rows of thousands of nodes in memory. As Nova creates them,
each takes 3.8 KiB, most of it copies of the same names and of objects equal to
those of other rows. Shared objects are never changed: code that writes a row
assigns a new value.
"""

import functools
import sys
from typing import Any, TypeVar

from nova.objects import base

_RowT = TypeVar('_RowT')

# Number of different values that are kept. If there are more, all are dropped,
# because the values that many rows share are soon found again.
_VALUES_MAX = 1024
_interned_values: dict[tuple[type, Any], Any] = {}


def intern_row(row: _RowT) -> _RowT:
    """Replace values of a row by equal ones of other rows; return the row."""
    shared = {name: _shared(value) for name, value in vars(row).items()}
    # A new dict, because one that has grown reserves twice the memory.
    row.__dict__ = shared
    return row


@functools.singledispatch
def _shared(value: Any) -> Any:
    return value


@_shared.register
def _(value: str) -> str:
    return sys.intern(value) if type(value) is str else value


@_shared.register
def _(value: float) -> Any:
    return _intern(value, value)


@_shared.register(dict)
def _(value: dict[Any, Any]) -> Any:
    for key, held in value.items():
        value[key] = _shared(held)
    return value


@_shared.register(list)
def _(value: list[Any]) -> Any:
    for index, held in enumerate(value):
        value[index] = _shared(held)
    return value


@_shared.register
def _(value: base.NovaObject) -> Any:
    content = {k: v for k, v in vars(value).items() if k != '_context'}
    # The content includes the fields that count as changed, so that a changed
    # object is not shared with an unchanged one.
    return _intern(value, repr(content))


def _intern(value: Any, content: Any) -> Any:
    """Return the first value of this type with an equal ``content``."""
    if len(_interned_values) >= _VALUES_MAX:
        _interned_values.clear()
    return _interned_values.setdefault((type(value), content), value)
