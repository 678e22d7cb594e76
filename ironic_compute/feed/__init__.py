# SPDX-License-Identifier: Apache-2.0
"""The node feed: reads changes of Ironic nodes and delivers them in order."""
