# SPDX-License-Identifier: Apache-2.0
"""Which nodes this host takes, gives away and drops (ComputeNode.host)."""
