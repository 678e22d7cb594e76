# SPDX-License-Identifier: Apache-2.0
"""The user's request that a thread works on: its context and its trace.

A thread of a pool works on one request after another. oslo.log adds the
request id of the thread's context to each line, and osprofiler, if Nova's
``[profiler] enabled`` is set, keeps one trace for each thread. Nova sets both
when it calls a handler, but does not replace the trace of an earlier request.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import profiler as nova_profiler


def begin(context: Mapping[str, Any]) -> None:
    """Have this thread work on a message whose handler has not begun yet.

    :param context: the message's context, as it was sent
    """
    _forget_trace()
    nova_context.RequestContext.from_dict(context)


@contextlib.contextmanager
def ending_trace() -> Iterator[None]:
    """End the trace of this thread's request with the block, if there is one.

    osprofiler would count all that the thread does later to that trace.
    """
    try:
        yield
    finally:
        _forget_trace()


def _forget_trace() -> None:
    if nova_profiler.profiler is not None:  # osprofiler is installed.
        nova_profiler.profiler.clean()
