# SPDX-License-Identifier: Apache-2.0
"""Decides which agent serves a host, and which host should hold a node."""
