# SPDX-License-Identifier: Apache-2.0
"""Faults on a real cloud under load, and checks of its promises."""
