# SPDX-License-Identifier: Apache-2.0
"""Numbers in the output of nova-manage."""

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
def test_found_things_are_counted(output, count):
    """The number of found things is read; an empty output has 0."""
    assert allocations.processed(output) == count


# The output of Nova 34, with the exit status for "nothing to do".
DRY_RUN = """\
Found 2 candidate instances.
[dry-run] Create allocations for instance a: {"allocations": {}}
[dry-run] Create allocations for instance b: {"allocations": {}}
Processed 0 instances.
"""


def test_proposals_of_a_dry_run_are_counted():
    """The proposals of a dry run are counted, not its last line."""
    assert allocations.would_heal(DRY_RUN) == 2
    assert allocations.would_heal('Processed 0 instances.\n') == 0
