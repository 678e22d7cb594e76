# SPDX-License-Identifier: Apache-2.0
"""The option ``--rewrite``, which replaces the effects in transcripts."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--rewrite',
        action='store_true',
        help='write into the transcripts what the code answers now; then '
        'read the difference before you commit it',
    )
