# SPDX-License-Identifier: Apache-2.0
"""Nova's ComputeManager for bare metal: RPC methods and periodic tasks."""
