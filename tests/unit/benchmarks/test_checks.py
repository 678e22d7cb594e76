# SPDX-License-Identifier: Apache-2.0
"""What nova-manage says is read as it says it."""

import pytest

from benchmarks import checks


@pytest.mark.parametrize(
    ('output', 'count'),
    [
        ('', 0),
        ('Found 1 candidate instances.\nProcessed 0 instances.\n', 0),
        ('Processed 3 allocations.\n', 3),
        ('Processed 1 allocation.\n', 1),
    ],
)
def test_what_was_found_is_counted(output, count):
    """Nothing is said of nothing."""
    assert checks.processed(output) == count
