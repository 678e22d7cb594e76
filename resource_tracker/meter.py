# SPDX-License-Identifier: Apache-2.0
"""What is worth counting; whoever wants figures hands a meter in."""

from typing import Protocol


class Meter(Protocol):
    """Any thread may call; nothing waits, nothing raises."""

    def count_request(
        self, method: str, what: str, status: str, seconds: float
    ) -> None:
        """Placement was asked for something and answered, or did not.

        :param what: the kind of thing, never a name or uuid
        :param status: the HTTP status, or ``none``
        """

    def count_report(self, seconds: float) -> None:
        """A change has reached Placement, so long after it was to."""

    def count_drift(self, count: int) -> None:
        """An audit found so many providers that others have written."""


class NoMeter:
    """Counts nothing."""

    def count_request(
        self, method: str, what: str, status: str, seconds: float
    ) -> None:
        """Count nothing."""

    def count_report(self, seconds: float) -> None:
        """Count nothing."""

    def count_drift(self, count: int) -> None:
        """Count nothing."""
