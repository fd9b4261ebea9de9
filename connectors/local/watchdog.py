"""Runs one child that must not outlive the process that started the watchdog.

Run as a script: `python watchdog.py COMMAND ...`. The watchdog prints the child's process id. Each
byte on its input is the number of a signal, which the watchdog sends to the child and then answers
with a byte. When the input ends, because the process at the other end is gone in any way, the
watchdog kills the child. The watchdog ends with the child.

*Invariants*: the child is this process's own, so a signal never reaches another process that got a
dead child's process id.

Imports only the standard library, so that it starts in milliseconds.
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
    # The child inherits the descriptors that this process inherited; its output goes to stderr.
    child = subprocess.Popen(  # noqa: S603 - the command is our parent's
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, close_fds=False
    )
    answering = threading.Lock()
    threading.Thread(target=_end_with, args=(child, answering), daemon=True).start()
    _answer(f"{child.pid}\n".encode())
    while number := _next_signal(parent):
        with answering:
            child.send_signal(number)
            _answer(b".")
    child.kill()
    child.wait()


def _next_signal(parent: int) -> int | None:
    """The number of the next requested signal, None when the parent is gone."""
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
        return  # the parent is gone: the next read of the input returns None


def _end_with(child: "subprocess.Popen[bytes]", answering: threading.Lock) -> None:
    code = child.wait()
    with answering:  # a signal that ended the child is answered first
        os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
