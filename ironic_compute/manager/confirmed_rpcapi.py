# SPDX-License-Identifier: Apache-2.0
"""Nova's client of compute hosts, for messages that must reach a queue.

RabbitMQ drops a message to a host without a queue, and tells nobody. After a
restart of RabbitMQ, the queue of a host whose daemon has died is missing until
another daemon serves the host. This client asks RabbitMQ to refuse such a
message (oslo.messaging's ``at_least_once``).
"""

from typing import Any

import oslo_messaging
from nova.compute import rpcapi

from hashring.clock import Clock

# Seconds until a build that no queue receives is given up. A dead host has a
# queue again when another daemon has adopted it.
_QUEUE_S = 30.0
_RETRY_S = 2.0


class _ConfirmingRouter:
    """Nova's router of RPC clients, for clients that ask for a confirmation.

    :param router: Nova's ``ClientRouter``
    """

    def __init__(self, router: Any) -> None:
        self._router = router

    def client(self, context: Any) -> Any:
        """Return a client whose messages are refused if nobody gets them."""
        return self._router.client(context).prepare(
            transport_options=oslo_messaging.TransportOptions(
                at_least_once=True
            )
        )


class ConfirmedComputeAPI(rpcapi.ComputeAPI):
    """Nova's ComputeAPI; a message to a host without a queue is an error."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    @property
    def router(self) -> _ConfirmingRouter:
        """Nova's router, whose clients ask RabbitMQ for a confirmation."""
        return _ConfirmingRouter(super().router)

    def build_and_run_instance(self, *args: Any, **kwargs: Any) -> None:
        """Send a build to a host; blocks until the host's queue has it.

        :raises oslo_messaging.MessageUndeliverable: the host has had no queue
            for half a minute
        """
        ends_s = self._clock.now_s() + _QUEUE_S
        while True:
            try:
                return super().build_and_run_instance(*args, **kwargs)
            except oslo_messaging.MessageUndeliverable:
                if self._clock.now_s() >= ends_s:
                    raise
            self._clock.sleep(_RETRY_S)
