"""How a process that handles many small records sets up the Python interpreter.

A worker does so by itself. An application that wants the same throughput calls `tune` once it is
set up; nothing else in the client library touches what belongs to the whole process.
"""

import gc
import sys

SWITCH_INTERVAL_S = 0.0005
"""A record crosses three threads on its way; at Python's 5 ms each of them would wait so long."""

YOUNG_OBJECTS_MAX = 10_000
"""Allocations before the collector looks at them. At Python's 700 it walks what is in flight again
and again, for a fifth of the time of a transaction; few of these objects are ever in a cycle."""


def tune() -> None:
    """Lets threads take turns more often, and the collector walk less; may be called again.

    What is alive now is never collected again, since most of it lives as long as the process:
    call it when everything is loaded and set up.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
    gc.collect()
    gc.freeze()
