# SPDX-License-Identifier: Apache-2.0
"""Tempest against this cloud: which tests, how, and what came of them."""
