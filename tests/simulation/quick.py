# SPDX-License-Identifier: Apache-2.0
"""Quicker values, for processes that do nothing but live lives.

A frozen dataclass sets each field by a call, and oslo.versionedobjects reads
each field by three; together they take a tenth of a life. The quicker values
equal the ones that they replace. The tests of pytest run without them, so
that a change of a frozen value is noticed there.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from oslo_versionedobjects import base

_OURS = ('hashring', 'ironic_compute', 'resource_tracker', 'tests')
_dataclass = dataclasses.dataclass


def dataclass(cls: Any = None, /, **options: Any) -> Any:
    """``dataclasses.dataclass``, but our classes are not frozen."""
    if cls is None:
        return lambda cls: dataclass(cls, **options)
    is_ours = cls.__module__.partition('.')[0] in _OURS
    if is_ours and options.get('frozen'):
        has_own = '__hash__' in vars(cls)
        is_hashed = options.get('eq', True) and not has_own
        options = {**options, 'frozen': False, 'unsafe_hash': is_hashed}
    return _dataclass(cls, **options)


def unfreeze_dataclasses() -> None:
    """Freeze no dataclass of a module that is imported from now on."""
    dataclasses.dataclass = dataclass


def quicken_fields() -> None:
    """Have the fields of all versioned objects be read by one call."""
    registered = base.VersionedObjectRegistry.obj_classes().values()
    for cls in {cls for versions in registered for cls in versions}:
        for name in cls.fields:
            field = vars(cls).get(name)
            if isinstance(field, property) and _is_made(field):
                setattr(
                    cls, name, property(reader(name), field.fset, field.fdel)
                )


def _is_made(field: property) -> bool:
    """Return whether a property is one that oslo.versionedobjects has made."""
    made = base._make_class_properties.__name__
    return getattr(field.fget, '__qualname__', '').startswith(made)


def reader(name: str) -> Callable[[Any], Any]:
    """Return a function that reads a field, and loads it if it is not set."""
    stored = base._get_attrname(name)

    def read(self: Any) -> Any:
        try:
            return self.__dict__[stored]
        except KeyError:
            self.obj_load_attr(name)
            return getattr(self, stored)

    return read
