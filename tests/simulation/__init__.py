# SPDX-License-Identifier: Apache-2.0
"""The simulation: real modules in a world of faults made from one seed."""
