# SPDX-License-Identifier: Apache-2.0
"""The virt driver: what Nova asks to be done to a node and its server."""
