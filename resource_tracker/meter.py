# SPDX-License-Identifier: Apache-2.0
"""Interface of the metrics that the resource tracker counts.

``ironic_compute.metrics`` implements it for Prometheus.
"""

import contextlib
from contextlib import AbstractContextManager
from typing import Protocol


class Meter(Protocol):
    """Counts requests and reports.

    Any thread may call; no method blocks or raises.
    """

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which a request to Placement is sent.

        It ends with the answer, or without one, before the request is counted.
        """

    def count_request(
        self, method: str, what: str, status: str, seconds: float
    ) -> None:
        """Count one request to Placement, answered or not.

        :param method: the HTTP method
        :param what: the kind of resource, such as ``inventories``; never a
            name or uuid
        :param status: the HTTP status, or ``none`` without an answer
        :param seconds: duration of the request
        """

    def count_report(self, seconds: float) -> None:
        """Count a change that was written to Placement.

        :param seconds: delay from the time when the change was due
        """

    def count_drift(self, count: int) -> None:
        """Count the providers that an audit found changed by other clients."""


class NoMeter:
    """A meter that counts nothing."""

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context of no effect."""
        return contextlib.nullcontext()

    def count_request(
        self, method: str, what: str, status: str, seconds: float
    ) -> None:
        """Do nothing."""

    def count_report(self, seconds: float) -> None:
        """Do nothing."""

    def count_drift(self, count: int) -> None:
        """Do nothing."""
