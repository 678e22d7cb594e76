# SPDX-License-Identifier: Apache-2.0
"""Tests of the files and commands that the installation guide shows."""
