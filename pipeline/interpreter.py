"""Tunes the Python interpreter for a process that handles many small records.

A worker calls `tune` by itself. An application that wants the same throughput calls `tune` once it
is set up; nothing else in the client library changes the whole process.
"""

import gc
import sys

SWITCH_INTERVAL_S = 0.0005
"""A record passes through three threads; with Python's 5 ms it would wait that long for each."""

YOUNG_OBJECTS_MAX = 10_000
"""Allocations between two runs of the garbage collector. With Python's 700 the collector visits the
objects of open transactions again and again, which takes a fifth of a transaction's time; few of
these objects are ever in a cycle."""


def tune(young_objects_max: int = YOUNG_OBJECTS_MAX) -> None:
    """Makes threads switch more often and the garbage collector run less; may be called again.

    Objects that exist at the call are never collected, since most of them live as long as the
    process: call `tune` when everything is loaded and set up.

    Args:
        young_objects_max: allocations between two runs of the garbage collector.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(young_objects_max, *gc.get_threshold()[1:])
    gc.collect()
    gc.freeze()
