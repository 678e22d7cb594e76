# SPDX-License-Identifier: Apache-2.0
"""The virt driver: Nova's operations on a node and its server."""
