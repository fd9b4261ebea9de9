"""Explains the position of a replicated group to an operator, with the next step, in one line.

*Source*: docs/protocols I; `Standing` is what the group's controller would decide.
"""

from collections.abc import Collection

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.link_liveness import CONNECTED_MS
from stilltide.pipeline.drivers.groups.report import Standpoint
from stilltide.schemas.values import ClusterName

_STEPS = {
    Standing.MOVING: "a worker moves the group within a second; check that one runs on {here}",
    Standing.ACTIVE: "stop the members so that the group takes over what it has read elsewhere",
    Standing.RESET_BY_HAND: "let the group read on, or set it to its former offset",
    Standing.BEYOND_THE_END: "set the group to an offset of this log",
    Standing.BEYOND_WHAT_IS_DECIDED: "`stilltide txn slow` names the undecided transactions",
    Standing.PUBLISHED_LATELY: "check again in a moment",
}

LAG_MAX = 10_000
"""Offsets that a link may still have to copy without being mentioned."""


def reason(one: Standpoint, *, disabled: Collection[ClusterName]) -> str:
    """The first cause that keeps the group from advancing on its cluster, and the next step.

    Args:
        one: the group on a data partition of the cluster.
        disabled: clusters on which the group is not replicated.
    """
    here, topic = one.cluster, one.data.topic
    if here in disabled:
        return f"the group is not replicated here; `stilltide group enable {topic} GROUP`"
    held_up = _link_reason(one)
    if held_up is not None:
        return held_up
    step = _STEPS.get(one.standing)
    if step is not None:
        return f"{one.standing}; {step.format(here=here)}"
    silent = sorted(one.links.keys() - one.told_by)
    if silent:
        return (
            f"{one.standing}; no update of the group has come from {', '.join(silent)}:"
            " the group has read nothing there, or no worker runs there"
        )
    return f"{one.standing}; the next record here was not read elsewhere"


def _link_reason(one: Standpoint) -> str | None:
    """The first fault of a link of the cluster; None: the links run and keep up."""
    here = one.cluster
    for source, left in sorted(one.links.items()):
        if left is None:
            return (
                f"no link from {source} has copied the topic to this cluster yet;"
                f" run `stilltide replicate --from {source} --to {here}`, and a worker on each"
            )
        if source in one.stopped:
            return (
                f"no sign for {CONNECTED_MS // 1000} s that the links from and to {source} run;"
                f" run `stilltide replicate --from {source} --to {here}`, and the one back"
            )
        if left > LAG_MAX:
            return f"the link from {source} has {left} offsets left to copy; see the link's log"
    return None
