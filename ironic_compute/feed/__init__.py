# SPDX-License-Identifier: Apache-2.0
"""Where changes of Ironic nodes come from, and their delivery in order."""
