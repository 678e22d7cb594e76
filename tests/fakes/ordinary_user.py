# SPDX-License-Identifier: Apache-2.0
"""Runs a part of a test as a user who may not enter each folder."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Be another user meanwhile, if this is root, who may enter any folder."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)
