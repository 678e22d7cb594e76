# SPDX-License-Identifier: Apache-2.0
"""The console scripts: daemon, worker, ironic-computectl, status check."""

import sys
import warnings

# Nova's libraries import eventlet, so no operator can do anything about its
# warning; it would precede the output of every command. Python's own options
# about warnings take precedence.
if not sys.warnoptions:
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
