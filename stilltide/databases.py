"""A row in a database and records in Kafka, both or neither: `Decisions`.

`stilltide.sync` has the same name for programs without an event loop.
"""

from stilltide.pipeline.databases.decisions import Decisions

__all__ = ["Decisions"]
