# SPDX-License-Identifier: Apache-2.0
"""Retry: a step is carried out again until it is answered.

Tenacity's time limit reads a clock of its own, so it is not used here.
"""

import math
from collections.abc import Callable
from typing import TypeVar

from oslo_log import log as logging

from hashring.clock import Clock

LOG = logging.getLogger(__name__)

_Result = TypeVar('_Result')


def retry(
    step: Callable[[], _Result],
    clock: Clock,
    is_repeated: Callable[[Exception], bool],
    log: Callable[[Exception], None] = LOG.debug,
    pause_s: float = 10.0,
    limit_s: float = math.inf,
) -> _Result:
    """Carry out a step and return its result; blocks until it is answered.

    :param is_repeated: whether to repeat the step after an error
    :param log: called with each such error
    :param limit_s: seconds after the first error in which an error is
        repeated; a step may take longer than that before it fails
    """
    ends_s = math.inf
    while True:
        try:
            return step()
        except Exception as exc:
            now_s = clock.now_s()
            ends_s = min(ends_s, now_s + limit_s)
            if not is_repeated(exc) or now_s >= ends_s:
                raise
            log(exc)
        clock.sleep(pause_s)
