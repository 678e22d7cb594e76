# SPDX-License-Identifier: Apache-2.0
"""The rights that the manual lists, on real policies."""
