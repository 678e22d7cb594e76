# SPDX-License-Identifier: Apache-2.0
"""Which process serves which host, and which host should hold which node."""
