"""The program `stilltide`: runs a command, or names the extra of the package that it needs.

*Source*: a plain `pip install stilltide` brings what applications need, without click and rich;
docs/internals/kafka-clients.md, The end of a process.

*Refuses*: to import at its top what an extra installs.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from stilltide.pipeline.extras import missing_extra

EXIT_MISSING_EXTRA = 1
"""The exit code of every `StilltideError`."""

EXIT_CRASHED = 1
"""The exit code of an error that no part of the program has expected."""

EXIT_INTERRUPTED = 130
"""The exit code of Ctrl-C."""


def run_program(arguments: Sequence[str]) -> int:
    """Runs a command line; returns its exit code.

    A command of an extra that is not installed says in one sentence which one to install.
    """
    try:
        from stilltide.pipeline.cli.main import run  # noqa: PLC0415 - see the module's docstring

        return run(arguments)
    except ModuleNotFoundError as error:
        missing = missing_extra("this command", error)
        if missing is None:
            raise
    except KeyboardInterrupt:  # while the command is imported, or at its end
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    sys.stderr.write(f"{missing.primary}\n")
    return EXIT_MISSING_EXTRA


def main() -> NoReturn:
    """The entry point."""
    code = EXIT_CRASHED
    try:
        code = run_program(sys.argv[1:])
    except SystemExit as ended:  # click's, where the reader of the output is gone
        code = ended.code if isinstance(ended.code, int) else EXIT_CRASHED
    except BaseException as error:  # noqa: BLE001 - what Python does with it, too
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    """Ends the process, without waiting for threads and without the exit handlers of C libraries.

    OpenSSL's handler frees what a client of Kafka still uses: clients live until the last answer
    to their requests, and their threads log in and encrypt meanwhile.
    """
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - as Python does at an end, after waiting for threads
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OSError:
        code = code or EXIT_CRASHED
    finally:
        os._exit(code)
