"""Why a replicated group is where it is, and what to do about it: one line for an operator.

*Source*: protocols.md I; `Standing` says what its controller would decide.
"""

from collections.abc import Collection

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.drivers.groups.report import Standpoint
from stilltide.schemas.values import ClusterName

_STEPS = {
    Standing.MOVING: "a worker moves it within a second; see that one runs on cluster {here}",
    Standing.ACTIVE: "stop them if it is to take over what it reads elsewhere",
    Standing.RESET_BY_HAND: "let it read on, or set it to where it was",
    Standing.BEYOND_THE_END: "set it to an offset of this log",
    Standing.BEYOND_WHAT_IS_DECIDED: "`stilltide txn slow` names what is not decided",
    Standing.PUBLISHED_LATELY: "look again",
}

LAG_MAX = 10_000
"""Offsets that a link may have before it that are not worth a word."""


def reason(one: Standpoint, *, disabled: Collection[ClusterName]) -> str:
    """The first thing that keeps the group from advancing on its cluster, and the next step.

    Args:
        one: the group there.
        disabled: clusters on which it is not replicated.
    """
    here, topic = one.cluster, one.data.topic
    if here in disabled:
        return f"it is not replicated here; `stilltide group enable {topic} GROUP`"
    for source, left in sorted(one.links.items()):
        if left is None:
            return (
                f"no link from {source} has come here yet;"
                f" `stilltide replicate --from {source} --to {here}`, and a worker on each"
            )
        if left > LAG_MAX:
            return f"the link from {source} has {left} offsets before it; see its log"
    step = _STEPS.get(one.standing)
    if step is not None:
        return f"{one.standing}; {step.format(here=here)}"
    silent = sorted(one.links.keys() - one.told_by)
    if silent:
        return (
            f"{one.standing}; nothing was heard of it from {', '.join(silent)}:"
            " it has read nothing there, or no worker runs there"
        )
    return f"{one.standing}; nothing that was read elsewhere lies next"
