# SPDX-License-Identifier: Apache-2.0
"""Computes and writes the Placement provider of each node of a worker."""
