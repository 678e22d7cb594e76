# SPDX-License-Identifier: Apache-2.0
"""Tempest on this cloud: selection, configuration, run and results."""
