"""Columns of figures that the owners of all logs have."""

from stilltide.pipeline.cli.common.output import Row
from stilltide.schemas.log_frames import LogFigures
from stilltide.schemas.values import EndOffset, Offset


def bounds_columns(bounds: tuple[Offset, EndOffset]) -> Row:
    """The length of the log, from its offsets, which are consecutive (B3)."""
    start, end = bounds
    return {"log_start_offset": start, "log_end_offset": end, "entries": end - start}


def writing_columns(one: LogFigures) -> Row:
    """The owner's batching settings, and figures of its written entries."""
    written = one.entries_written
    return {
        "batching_enabled": one.batching_enabled,
        "batch_records_max": one.batch_records_max,
        "batch_bytes_max": one.batch_bytes_max,
        "batch_delay_ms_max": one.batch_delay_us_max / 1000,
        "flush_mode": "eager" if one.flush_eager else "timer",
        "entries_written": written,
        "records_written": one.records_written,
        "records_per_entry": round(one.records_written / written, 2) if written else None,
        "appends_in_flight": one.appends_in_flight,
    }
