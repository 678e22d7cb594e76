# SPDX-License-Identifier: Apache-2.0
"""The daemons: all that knows Nova and Ironic, on top of both libraries."""
