# SPDX-License-Identifier: Apache-2.0
"""One object for equal values: thousands of nodes say the same few things.

What is returned must not be changed. Without this a set of six traits takes
0.7 KiB, three times a node.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

# Different values that are remembered; more than these are not shared.
_KEPT_COUNT = 1024


@functools.lru_cache(_KEPT_COUNT)
def names(found: frozenset[str]) -> frozenset[str]:
    """Return the set of names that first was equal to this one."""
    return found


def record(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON object that first was equal to this one."""
    return _record(json.dumps(found, sort_keys=True))


@functools.lru_cache(_KEPT_COUNT)
def _record(text: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(text)
    return found
