# SPDX-License-Identifier: Apache-2.0
"""Contract tests of the Placement client, real and fake."""
