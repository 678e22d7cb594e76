# SPDX-License-Identifier: Apache-2.0
"""Tests: unit/hashring."""
