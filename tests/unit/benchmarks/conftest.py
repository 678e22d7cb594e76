# SPDX-License-Identifier: Apache-2.0
"""Makes the modules of ``devstack/cloud`` importable; some parts use them."""

import pathlib
import sys

DEVSTACK = pathlib.Path(__file__).resolve().parents[3] / 'devstack'
sys.path.insert(0, str(DEVSTACK))
