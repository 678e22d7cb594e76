# SPDX-License-Identifier: Apache-2.0
"""Causes faults on a real cloud under load, and checks what must hold then."""
