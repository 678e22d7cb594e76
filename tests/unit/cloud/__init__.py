# SPDX-License-Identifier: Apache-2.0
"""What of devstack/cloud can be tested without a cloud."""
