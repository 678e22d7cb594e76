# SPDX-License-Identifier: Apache-2.0
"""Tests of the DevStack plugin, of the jobs and of the sample files."""
