# SPDX-License-Identifier: Apache-2.0
"""Contract with a real RabbitMQ and the installed oslo.messaging."""
