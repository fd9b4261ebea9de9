"""The event loop and the process in which a client or a subscription was opened.

*Source*: docs/services.md. The clients of Kafka below have threads, which a forked process does not
have, and answers come to one event loop: a call from elsewhere would wait for ever.
"""

import asyncio
import os

from stilltide.pipeline.errors import ForkedError, OtherLoopError


class Home:
    """Where an object was opened: the running event loop, and the process.

    Args:
        what: the object in errors, such as `client`.
    """

    __slots__ = ("_loop", "_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def check(self) -> None:
        """Passes a call on the event loop of the object.

        A forked process has no event loop that runs, so the comparison finds both mistakes.

        Raises:
            OtherLoopError: the call is on another event loop, or on none.
            ForkedError: the call is in a process that was forked after the object was opened.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self._loop:
            check_process(self._what, self._pid)
            raise OtherLoopError(
                f"the {self._what} was opened on another event loop",
                detail="nothing was sent",
                hint=f"open a {self._what} on each event loop, or use `stilltide.sync`, whose calls"
                " may come from every thread",
            )


def check_process(what: str, pid: int) -> None:
    """Raises `ForkedError` unless this is the process `pid`, in which `what` was opened."""
    if os.getpid() != pid:
        raise ForkedError(
            f"the {what} was opened in process {pid}, of which this process is a fork",
            detail="nothing was sent: its threads and connections stayed in that process",
            hint=f"open the {what} after the fork, once in each process, for example when the"
            " process first needs it",
        )
