# SPDX-License-Identifier: Apache-2.0
"""What our Ironic client may rely on, our fake and a real Ironic alike."""
