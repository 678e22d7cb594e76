# SPDX-License-Identifier: Apache-2.0
"""Finds and finishes the tasks that a crash or a lost message interrupted."""
