# SPDX-License-Identifier: Apache-2.0
"""The console scripts: daemon, worker, ironic-computectl, status check."""
