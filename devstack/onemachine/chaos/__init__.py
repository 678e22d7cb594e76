# SPDX-License-Identifier: Apache-2.0
"""Faults on a real cloud under load, and what is seen to hold meanwhile."""
