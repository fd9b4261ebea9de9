"""Runs one child that must not outlive the process that started the watchdog.

Run as a script: `python watchdog.py COMMAND ...`. Prints the child's process id, then sends the
child each signal whose number arrives as a byte on its input, answering each with a byte. When the
input ends, because whoever held the other end is gone by whatever means, it kills the child. Ends
with the child.

*Invariants*: the child is this process's own, so a signal never reaches a stranger that was given
a dead child's process id.

Refuses to know anything of Kafka, and to import more than the standard library: it starts in
milliseconds.
"""

import os
import select
import subprocess
import sys
import threading

_PARENT_CHECK_S = 1.0


def main() -> None:
    """Runs the command to its end."""
    parent = os.getppid()
    # The child inherits the descriptors that were passed down, and writes where stderr goes.
    child = subprocess.Popen(  # noqa: S603 - the command is our parent's
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, close_fds=False
    )
    threading.Thread(target=_end_with, args=(child,), daemon=True).start()
    _answer(f"{child.pid}\n".encode())
    while number := _next_signal(parent):
        child.send_signal(number)
        _answer(b".")
    child.kill()
    child.wait()


def _next_signal(parent: int) -> int | None:
    """The next signal asked for, None when the parent is gone."""
    while True:
        readable, _, _ = select.select([0], [], [], _PARENT_CHECK_S)
        if readable:
            data = os.read(0, 1)
            return data[0] if data else None
        # A process forked by the parent may hold our input open after the parent's death.
        if os.getppid() != parent:
            return None


def _answer(data: bytes) -> None:
    try:
        os.write(1, data)
    except BrokenPipeError:
        return  # the parent is gone: the next read of the input says so


def _end_with(child: "subprocess.Popen[bytes]") -> None:
    code = child.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
