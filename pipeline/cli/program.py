"""The program `stilltide`: runs a command, or names the extra of the package that it needs.

*Source*: a plain `pip install stilltide` brings what applications need, without click and rich.

*Refuses*: to import at its top what an extra installs.
"""

import sys
from collections.abc import Sequence

from stilltide.pipeline.extras import missing_extra

EXIT_MISSING_EXTRA = 1
"""The exit code of every `StilltideError`."""

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


def main() -> None:
    """The entry point."""
    sys.exit(run_program(sys.argv[1:]))
