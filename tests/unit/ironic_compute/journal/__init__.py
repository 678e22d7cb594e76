# SPDX-License-Identifier: Apache-2.0
"""Tests: unit/ironic_compute/journal."""
