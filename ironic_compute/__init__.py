# SPDX-License-Identifier: Apache-2.0
"""The daemons: the code that uses Nova and Ironic, above both libraries."""
