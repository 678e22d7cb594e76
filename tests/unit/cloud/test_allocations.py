# SPDX-License-Identifier: Apache-2.0
"""What nova-manage says is read as it says it."""

import pytest
from onemachine import allocations


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
    assert allocations.processed(output) == count


# As Nova 34 says it, with the exit status of "nothing to do".
DRY_RUN = """\
Found 2 candidate instances.
[dry-run] Create allocations for instance a: {"allocations": {}}
[dry-run] Create allocations for instance b: {"allocations": {}}
Processed 0 instances.
"""


def test_dry_run_says_what_it_would_do():
    """Its last line says that it has done nothing."""
    assert allocations.would_heal(DRY_RUN) == 2
    assert allocations.would_heal('Processed 0 instances.\n') == 0
