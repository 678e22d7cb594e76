# SPDX-License-Identifier: Apache-2.0
"""Tests of ``devstack/cloud`` that need no cloud."""
