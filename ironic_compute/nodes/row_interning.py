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

# Different values that are remembered. When there are more, all are forgotten:
# what many rows have is soon found again.
_VALUES_MAX = 1024
_interned_values: dict[tuple[type, Any], Any] = {}


def intern_row(row: _RowT) -> _RowT:
    """Let a row share with all others what it has in common; return it."""
    shared = {name: _shared(value) for name, value in vars(row).items()}
    # Not the dict it had: one that has grown has room for twice as much.
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
    # What counts as changed in it is part of this.
    return _intern(value, repr(content))


def _intern(value: Any, content: Any) -> Any:
    """Return the first value that said the same."""
    if len(_interned_values) >= _VALUES_MAX:
        _interned_values.clear()
    return _interned_values.setdefault((type(value), content), value)
