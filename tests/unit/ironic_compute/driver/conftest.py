# SPDX-License-Identifier: Apache-2.0
"""Prints what came of each fault at the end of a run."""

import sys


def pytest_terminal_summary(terminalreporter):
    """Print the matrix of faults, if it was run."""
    module = sys.modules.get(f'{__package__}.test_faults')
    matrix = getattr(module, 'MATRIX', None)
    if not matrix:
        return
    names = list(next(iter(matrix.values())))
    terminalreporter.section('faults at each request')
    for (operation, request), cells in matrix.items():
        told = ' '.join(cells.get(n, '').ljust(len(n)) for n in names)
        terminalreporter.write_line(f'{operation:8}{request:24} {told}')
    terminalreporter.write_line(' ' * 33 + ' '.join(names))
    count = sum(len(cells) for cells in matrix.values())
    terminalreporter.write_line(
        f'{count} cases. ok: done all the same; next: Nova tries another '
        f'node; error: the server is in ERROR; absent: Ironic has it no more'
    )
