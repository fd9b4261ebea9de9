"""Traces of a test: the SDK of OpenTelemetry with an exporter in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler
from opentelemetry.trace import SpanContext

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The header of a span of another program, and the span's id."""

PARENT_SPAN = 0xB7AD6B7169203331


class Traces:
    """What was traced.

    Args:
        sampler: says which traces are kept.

    Attributes:
        provider: the provider of tracers, for spans of the test itself.
    """

    def __init__(self, sampler: Sampler = DEFAULT_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def tracer(self) -> trace.Tracer:
        """For spans of the test itself."""
        return self.provider.get_tracer("test")

    def spans(self, name: str) -> list[ReadableSpan]:
        """The ended spans of a name, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        """The only ended span of a name."""
        (span,) = self.spans(name)
        return span

    @property
    def names(self) -> list[str]:
        """The names of all ended spans, sorted."""
        return sorted(span.name for span in self._exporter.get_finished_spans())


@contextmanager
def traced(traces: Traces) -> Iterator[Traces]:
    """Makes these traces those of the process, which the SDK allows once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", traces.provider)
        yield traces


def context_of(span: ReadableSpan) -> SpanContext:
    """The context of a span that has one."""
    assert span.context is not None
    return span.context


def links_of(span: ReadableSpan) -> list[int]:
    """The ids of the spans that a span links to."""
    return [link.context.span_id for link in span.links]


def current_span_id() -> int:
    """The id of the span that is current here; 0: there is none."""
    return trace.get_current_span().get_span_context().span_id
