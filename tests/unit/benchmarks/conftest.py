# SPDX-License-Identifier: Apache-2.0
"""Some parts use the cloud's modules, which are beside its program."""

import pathlib
import sys

DEVSTACK = pathlib.Path(__file__).resolve().parents[3] / 'devstack'
sys.path.insert(0, str(DEVSTACK))
