# SPDX-License-Identifier: Apache-2.0
"""The paths to other services: which of them work, as the worker observes."""
