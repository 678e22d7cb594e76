# SPDX-License-Identifier: Apache-2.0
"""The journal of moves: which node or host went where, when and why."""
