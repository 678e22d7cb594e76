# SPDX-License-Identifier: Apache-2.0
"""What Placement should hold of each node, and the writes to get it there."""
