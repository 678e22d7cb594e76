# SPDX-License-Identifier: Apache-2.0
"""The agent's port: health, metrics and state over HTTP, read-only."""
