# SPDX-License-Identifier: Apache-2.0
"""The worker process: how it is put together, started and stopped."""
