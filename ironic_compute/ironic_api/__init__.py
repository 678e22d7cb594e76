# SPDX-License-Identifier: Apache-2.0
"""The Ironic API client, the only user of python-ironicclient."""
