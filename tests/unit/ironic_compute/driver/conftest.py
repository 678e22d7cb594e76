# SPDX-License-Identifier: Apache-2.0
"""Print the outcomes of ``test_faults`` at the end of a run."""

import sys


def pytest_terminal_summary(terminalreporter):
    """Print the matrix of faults and outcomes, if these tests were run."""
    module = sys.modules.get(f'{__package__}.test_faults')
    matrix = getattr(module, 'MATRIX', None)
    if not matrix:
        return
    names = list(next(iter(matrix.values())))
    terminalreporter.section('faults at each request')
    for (operation, request), cells in matrix.items():
        outcomes = ' '.join(cells.get(n, '').ljust(len(n)) for n in names)
        terminalreporter.write_line(f'{operation:8}{request:24} {outcomes}')
    terminalreporter.write_line(' ' * 33 + ' '.join(names))
    count = sum(len(cells) for cells in matrix.values())
    terminalreporter.write_line(
        f'{count} cases. ok: the operation succeeds in spite of the fault; '
        f'next: Nova tries another node; error: the server is in ERROR; '
        f'kept: the server is as it was; '
        f'absent: Ironic does not have the server'
    )
