# SPDX-License-Identifier: Apache-2.0
"""Nova's client of compute hosts, for messages that must reach a queue.

RabbitMQ drops a message to a host without a queue, and tells nobody. After a
restart of RabbitMQ, the queue of a host whose daemon has died is missing until
another daemon serves the host. This client asks RabbitMQ to refuse such a
message (oslo.messaging's ``at_least_once``).

A RabbitMQ that has just been started may refuse all messages for a moment. The
build or unshelve would be lost, so it is sent again until RabbitMQ takes it; a
host that gets it twice does it once.
"""

import functools
from collections.abc import Callable
from typing import Any

import oslo_messaging
from nova.compute import rpcapi

from hashring.clock import Clock
from ironic_compute.manager.retries import after, is_refused, log_refused
from ironic_compute.retry import retry

# Seconds until a build or unshelve that no queue receives is given up. A dead
# host has a queue again when another daemon has adopted it.
_QUEUE_S = 30.0


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

    def build_and_run_instance(
        self, ctxt: Any, instance: Any, host: str, *args: Any, **kwargs: Any
    ) -> None:
        """Send a build to a host; blocks until the host's queue has it.

        :raises oslo_messaging.MessageUndeliverable: the host has had no queue
            for half a minute
        """
        cast = super().build_and_run_instance
        self._send(
            functools.partial(cast, ctxt, instance, host, *args, **kwargs),
            'build_and_run_instance',
            host,
        )

    def unshelve_instance(
        self, ctxt: Any, instance: Any, host: str, *args: Any, **kwargs: Any
    ) -> None:
        """Send an unshelve to a host, like a build."""
        cast = super().unshelve_instance
        self._send(
            functools.partial(cast, ctxt, instance, host, *args, **kwargs),
            'unshelve_instance',
            host,
        )

    def _send(self, cast: Callable[[], None], name: str, host: str) -> None:
        def send() -> None:
            retry(
                cast,
                self._clock,
                after(oslo_messaging.MessageUndeliverable),
                pause_s=2.0,
                limit_s=_QUEUE_S,
            )

        retry(
            send,
            self._clock,
            is_refused,
            functools.partial(log_refused, name, f'host {host}'),
        )
