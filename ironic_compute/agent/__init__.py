# SPDX-License-Identifier: Apache-2.0
"""The agent process: it starts, watches and ends the worker processes."""
