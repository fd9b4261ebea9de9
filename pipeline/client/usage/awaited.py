"""Finds the sends of a transaction that were not awaited, before the transaction commits.

*Source*: Python warns of a coroutine that was never awaited when the coroutine is collected: after
the commit, on stderr, and often unseen. The records would be lost in silence.
"""

from stilltide.pipeline.errors import NotAwaitedError


def check_awaited(made: int, begun: int, ended: int) -> None:
    """Passes when each `send` has ended.

    Args:
        made: number of calls of `send`; each call makes a coroutine.
        begun: number of these coroutines that have begun.
        ended: number of these that have returned or raised.

    Raises:
        NotAwaitedError: some have not; a commit would not count their records.
    """
    if never := made - begun:
        raise NotAwaitedError(
            f"{never} sends were never awaited" if never > 1 else "1 send was never awaited",
            detail="the transaction is aborted: a commit would lose their records",
            hint="write `await txn.send(...)`",
        )
    if running := begun - ended:
        raise NotAwaitedError(
            f"{running} sends have not ended" if running > 1 else "1 send has not ended",
            detail="the transaction is aborted: a commit would lose their records",
            hint="await the tasks that send before the transaction ends, for example in an"
            " `asyncio.TaskGroup` inside of the transaction's block",
        )
