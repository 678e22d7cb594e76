# SPDX-License-Identifier: Apache-2.0
"""Consistency checks: Ironic, Nova and Placement of one pool compared."""
