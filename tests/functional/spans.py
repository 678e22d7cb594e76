# SPDX-License-Identifier: Apache-2.0
"""What oslo.messaging needs of OpenTelemetry, in memory.

oslo.messaging imports OpenTelemetry when its tracing is switched on. The
exporters of OpenTelemetry need a server; here each span is kept in a list.
"""

import contextlib
import itertools
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any

# The name, the id and the parent's id of each span that was begun.
SPANS: list[tuple[str, str, str | None]] = []
_ids = map(str, itertools.count(1))
_current = threading.local()
_PARENT = 'traceparent'


class _Span:
    def set_attribute(self, name: str, value: Any) -> None:
        """Keep nothing of it."""

    def set_status(self, *status: Any) -> None:
        """Keep nothing of it."""

    def record_exception(self, error: Exception) -> None:
        """Keep nothing of it."""


class _Tracer:
    @contextlib.contextmanager
    def start_as_current_span(
        self, name: str, kind: str, context: str | None = None
    ) -> Iterator[_Span]:
        """Begin a span; the context is the parent's id."""
        _current.span = next(_ids)
        SPANS.append((name, _current.span, context))
        yield _Span()


def _inject(carrier: dict[str, Any]) -> None:
    """Put the id of the span that this thread began last into a message."""
    carrier[_PARENT] = _current.span


def _extract(carrier: Mapping[str, Any]) -> Any:
    return carrier.get(_PARENT)


def install() -> None:
    """Have ``import opentelemetry`` find this module's parts."""
    trace: Any = types.ModuleType('opentelemetry.trace')
    trace.ProxyTracerProvider = type('ProxyTracerProvider', (), {})
    trace.SpanKind = types.SimpleNamespace(PRODUCER='out', CONSUMER='in')
    trace.StatusCode = types.SimpleNamespace(ERROR='error')
    trace.get_tracer_provider = object
    trace.get_tracer = lambda name: _Tracer()
    propagate: Any = types.ModuleType('opentelemetry.propagate')
    propagate.inject, propagate.extract = _inject, _extract
    package: Any = types.ModuleType('opentelemetry')
    package.trace, package.propagate = trace, propagate
    for module in (package, trace, propagate):
        sys.modules[module.__name__] = module
