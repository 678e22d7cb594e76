# SPDX-License-Identifier: Apache-2.0
"""A thread that has worked on a request keeps nothing of it for the next."""

from concurrent import futures
from typing import Any

import pytest
from nova import context as nova_context
from nova import profiler as nova_profiler
from oslo_context import context as oslo_context

from ironic_compute.manager import request_context


def _current_id() -> str | None:
    current = oslo_context.get_current()
    return None if current is None else current.request_id


def _context() -> Any:
    return nova_context.get_admin_context().to_dict()


def test_each_message_has_its_own_context() -> None:
    """The context of the message before is replaced."""
    sent = [_context() for _ in range(3)]

    def begin(context: Any) -> str | None:
        request_context.begin(context)
        return _current_id()

    with futures.ThreadPoolExecutor(1) as thread:
        found = list(thread.map(begin, sent))
    assert found == [context['request_id'] for context in sent]


def test_next_message_does_not_continue_the_trace() -> None:
    """It is traced only if its sender says so."""
    profiler = pytest.importorskip('osprofiler.profiler')

    def begin() -> Any:
        profiler.init('key')
        request_context.begin(_context())
        return profiler.get()

    with futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(begin).result() is None


def test_trace_ends_after_an_error_too() -> None:
    """A build that failed is not continued by the thread's next build."""
    profiler = pytest.importorskip('osprofiler.profiler')

    def build() -> Any:
        profiler.init('key')
        with pytest.raises(ValueError), request_context.ending_trace():
            assert profiler.get() is not None
            raise ValueError
        return profiler.get()

    with futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(build).result() is None


def test_without_osprofiler_nothing_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is an extra requirement of Nova's that need not be installed."""
    monkeypatch.setattr(nova_profiler, 'profiler', None)
    context = _context()

    def build() -> str | None:
        with request_context.ending_trace():
            request_context.begin(context)
            return _current_id()

    with futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(build).result() == context['request_id']
