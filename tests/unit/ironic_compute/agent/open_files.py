# SPDX-License-Identifier: Apache-2.0
"""Counts the open files of the process of the tests."""

import gc
import os


def count_fds() -> int:
    """Return the number of open files, without those of lost objects.

    Earlier tests may have lost some, which Python would close at any time.
    """
    gc.collect()
    return len(os.listdir('/proc/self/fd'))
