# SPDX-License-Identifier: Apache-2.0
"""An outage of Ironic: which lists of nodes fail, said once in the log."""

import threading

from oslo_log import log as logging

from ironic_compute import errors

LOG = logging.getLogger(__name__)


class Outage:
    """Which of the two lists fail; logs once when reading fails and recovers.

    The threads of the audit and of the delta list call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: set[object] = set()

    @property
    def is_on(self) -> bool:
        """Whether the audit or the delta list fails."""
        return bool(self._failing)

    @property
    def is_total(self) -> bool:
        """Whether both the audit and the delta list fail."""
        return len(self._failing) > 1

    def note_failure(
        self, read: object, exc: errors.IronicComputeError
    ) -> None:
        """Record that ``read`` failed; log a warning at the first failure."""
        with self._lock:
            log = LOG.debug if self._failing else LOG.warning
            self._failing.add(read)
        log(
            "Could not read Ironic's nodes; keeping what is known and trying "
            'again: %(error)s',
            {'error': exc},
        )

    def note_success(self, read: object) -> None:
        """Record that ``read`` succeeded; log when no read fails any more."""
        with self._lock:
            if read not in self._failing:
                return
            self._failing.discard(read)
            is_over = not self._failing
        if is_over:
            LOG.info('Ironic answers again')
