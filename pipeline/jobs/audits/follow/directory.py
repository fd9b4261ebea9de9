"""Runs audits that go on in a report's directory: state, report and history belong together.

*Invariants*: the state is stored last, by one rename: a crash before that repeats the run, with the
same number and so the same row of the history. A run that raises an error changes no file.
"""

from pathlib import Path

from stilltide.pipeline.jobs.audits.files import write_report
from stilltide.pipeline.jobs.audits.follow.history import row_of, write_history
from stilltide.pipeline.jobs.audits.follow.state import load_state, store_state
from stilltide.pipeline.jobs.audits.follow.step import Follower, Stepped


def run_once(follower: Follower, directory: Path) -> Stepped:
    """One run; the caller holds the directory's lock.

    Raises:
        OSError: the directory cannot be written to.
        FatalError: the directory holds audits of something else.
        Others: as `run_audit` raises.
    """
    found = follower.step(load_state(directory))
    history = write_history(directory, row_of(found.state.run, found.report))
    write_report(found.report, directory, history)
    store_state(directory, found.state)
    return found
