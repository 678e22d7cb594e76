# SPDX-License-Identifier: Apache-2.0
"""Interface of the metrics of requests to the coordination backend.

``ironic_compute.agent_port`` implements it for Prometheus.
"""

import contextlib
from typing import Protocol


class BackendMeter(Protocol):
    """Measures requests; any thread may call, and no method raises."""

    def time(self, request: str) -> contextlib.AbstractContextManager[None]:
        """Measure the block: its duration, and whether it raises an error.

        :param request: the kind of request, such as ``heartbeat``
        """


class NoMeter:
    """A meter that measures nothing."""

    def time(self, request: str) -> contextlib.AbstractContextManager[None]:
        """Do nothing."""
        return contextlib.nullcontext()
