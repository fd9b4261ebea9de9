"""Options and parts that `stilltide status` and the console share."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from stilltide.pipeline.core.status.findings import StatusLimits
from stilltide.pipeline.core.status.values import AuditStatus
from stilltide.pipeline.jobs.audits.last import last_audit

_Command = TypeVar("_Command", bound=Callable[..., Any])


def state_options(command: _Command) -> _Command:
    """Adds `--hold-s` and `--audit`; `limits_of` and `audit_readers` take their values."""
    for option in (
        click.option(
            "--audit",
            "audits",
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="DIRECTORY",
            help="Show the last audit, too, whose --report directory this is.",
        ),
        click.option(
            "--hold-s",
            type=click.FloatRange(1),
            default=60.0,
            show_default=True,
            help="Age from which a transaction that holds readers back needs a person.",
        ),
    ):
        command = option(command)
    return command


def limits_of(hold_s: float) -> StatusLimits:
    """From when on something is a finding."""
    return StatusLimits(hold_ms=round(hold_s * 1000))


def audit_readers(audits: Sequence[Path]) -> dict[str, Callable[[], Awaitable[AuditStatus]]]:
    """What reads the last audit in each of these directories."""
    return {str(one): partial(last_audit, one) for one in audits}
