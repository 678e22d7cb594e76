# SPDX-License-Identifier: Apache-2.0
"""One shared object for equal sets of names and equal JSON objects.

Thousands of nodes have the same few traits, properties and inventories; a set
of six traits takes 0.7 KiB, and each node has three such sets. Sharing saves
this memory. Callers must not change a returned object.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

# Least recently used values beyond this number are not shared any more.
_KEPT_COUNT = 1024


@functools.lru_cache(_KEPT_COUNT)
def names(found: frozenset[str]) -> frozenset[str]:
    """Return a shared set that equals the given one."""
    return found


def record(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a shared JSON object that equals the given one."""
    return _record(json.dumps(found, sort_keys=True))


@functools.lru_cache(_KEPT_COUNT)
def _record(text: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(text)
    return found
