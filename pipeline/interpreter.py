"""Tunes the Python interpreter for a process that handles many small records.

A worker calls `tune` by itself. An application that wants the same throughput calls `tune` once it
is set up; nothing else in the client library changes the whole process.
"""

import ctypes
import gc
import sys
from contextlib import suppress

SWITCH_INTERVAL_S = 0.0005
"""A record passes through three threads; with Python's 5 ms it would wait that long for each."""

YOUNG_OBJECTS_MAX = 10_000
"""Allocations between two runs of the garbage collector. With Python's 700 the collector visits the
objects of open transactions again and again, which takes a fifth of a transaction's time; few of
these objects are ever in a cycle."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2
_OWN_BYTES = 64 * 1024


def save_memory() -> None:
    """Has the process give memory back; does little without the GNU C library.

    By default that library gives up to eight heaps to each processor, and each of them keeps what
    its threads have ever needed; so does the heap that large records were in. Clients of Kafka have
    five threads each: a process that opens and closes many of them, or reads large records now and
    then, would grow by hundreds of MiB. Afterwards all threads share two heaps, and a block of 64
    KiB or more goes back to the system once it is free. What is loaded is never collected, so that
    collecting takes little. Call this before there are threads.
    """
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, _ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _OWN_BYTES)


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
