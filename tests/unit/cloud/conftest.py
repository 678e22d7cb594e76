# SPDX-License-Identifier: Apache-2.0
"""Makes the modules of ``devstack/cloud`` importable."""

import pathlib
import sys

import pytest

DEVSTACK = pathlib.Path(__file__).resolve().parents[3] / 'devstack'
sys.path.insert(0, str(DEVSTACK))

from onemachine.layout import Layout  # noqa: E402


@pytest.fixture
def layout(tmp_path):
    """Return the layout of a cloud that does not exist."""
    return Layout(tmp_path / 'state')
