# SPDX-License-Identifier: Apache-2.0
"""The nodes this host holds: cache, ComputeNode rows, Placement reports."""
