"""Committed records in PySpark: frames, batches, tables and streams; needs the extra `spark`.

Each name is loaded at its first use, as those of `stilltide`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stilltide.connectors.local.jars import spark_jars
    from stilltide.connectors.spark.options import SparkOptions
    from stilltide.connectors.spark.recipes import with_json, with_protobuf
    from stilltide.connectors.spark.session import spark_session
    from stilltide.pipeline.jobs.native_committed import read_native_committed
    from stilltide.pipeline.jobs.read_committed import read_committed
    from stilltide.pipeline.jobs.streams.stream import stream
    from stilltide.pipeline.jobs.tables.append import append_committed
    from stilltide.pipeline.jobs.tables.batches import CommittedBatch, committed_batches
    from stilltide.pipeline.jobs.tables.target import (
        parse_target,
        read_parquet_table,
        table_session_options,
    )
    from stilltide.pipeline.jobs.write import write
    from stilltide.schemas.tables.progress import TableProgress

__all__ = [
    "CommittedBatch",
    "SparkOptions",
    "TableProgress",
    "append_committed",
    "committed_batches",
    "parse_target",
    "read_committed",
    "read_native_committed",
    "read_parquet_table",
    "spark_jars",
    "spark_session",
    "stream",
    "table_session_options",
    "with_json",
    "with_protobuf",
    "write",
]

_MODULES = {
    "connectors.local.jars": ("spark_jars",),
    "connectors.spark.options": ("SparkOptions",),
    "connectors.spark.recipes": ("with_json", "with_protobuf"),
    "connectors.spark.session": ("spark_session",),
    "pipeline.jobs.native_committed": ("read_native_committed",),
    "pipeline.jobs.read_committed": ("read_committed",),
    "pipeline.jobs.streams.stream": ("stream",),
    "pipeline.jobs.tables.append": ("append_committed",),
    "pipeline.jobs.tables.batches": ("CommittedBatch", "committed_batches"),
    "pipeline.jobs.tables.target": (
        "parse_target",
        "read_parquet_table",
        "table_session_options",
    ),
    "pipeline.jobs.write": ("write",),
    "schemas.tables.progress": ("TableProgress",),
}
"""Modules of public names."""


def __getattr__(name: str) -> object:
    """Loads a public name at its first use, and keeps it."""
    home = next((module for module, names in _MODULES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"stilltide.{home}")
    except ModuleNotFoundError as error:
        if error.name not in {"pyspark", "py4j", "pyarrow", "pandas"}:
            raise
        raise ImportError(
            f"stilltide.spark needs {error.name}: pip install 'stilltide[spark]'"
        ) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, for interactive use."""
    return sorted(__all__)
