"""The page of links between clusters, and of publishes to other topics."""

from stilltide.pipeline.console.views import (
    NOTHING,
    UNKNOWN,
    Cell,
    PageSection,
    age_text,
    ago,
    columns,
    number,
    table,
)
from stilltide.pipeline.core.status.state import Aged, SystemStatus
from stilltide.pipeline.core.status.values import LinkStatus
from stilltide.schemas.values import ClusterName

_LINKS = columns(
    "from", "state", "lag#", "a second#", "topics#", "partitions#", "heard of#", "last error"
)
_PARTITIONS = columns("from", "partition", "passed to#", "lag#")


def links(status: SystemStatus) -> tuple[PageSection, ...]:
    """The links into each cluster."""
    return tuple(_into(status, target, found) for target, found in status.links.items())


def _into(
    status: SystemStatus, target: ClusterName, found: Aged[tuple[LinkStatus, ...]]
) -> PageSection:
    there = status.cluster(target)
    away = there.brokers if there is not None and there.away else None
    all_links = found.value or ()
    partitions = [
        (
            Cell(link.source),
            Cell(str(it.data), "code"),
            number(it.source_to),
            number(it.lag),
        )
        for link in all_links
        for it in sorted(link.partitions, key=lambda partition: -(partition.lag or 0))
    ]
    return PageSection(
        f"Links into {target}",
        note="Lag is counted in offsets of the source that the link has not passed. The rate is"
        " that of the last ten seconds. The last error is kept when a link runs again, and when"
        " it is restarted; a link that runs has got over it.",
        age=age_text(found, status.now_ms),
        problem=found.problem or (away.problem if away else ""),
        hint=found.hint or (away.hint if away else ""),
        empty="" if found.value is None else "No link copies to this cluster.",
        tables=(
            *table(f"Links into {target}", _LINKS, [_link(it, status.now_ms) for it in all_links]),
            *table(f"Partitions of links into {target}", _PARTITIONS, partitions),
        ),
    )


def _link(one: LinkStatus, now_ms: int) -> tuple[Cell, ...]:
    state = Cell("runs", "good") if one.running else Cell("stopped", "bad")
    if one.problem:
        state = Cell("ended", "bad", note=one.problem)
    return (
        Cell(one.source),
        state,
        number(one.lag),
        Cell(UNKNOWN if one.rate is None else f"{one.rate:,.0f}", "num"),
        number(len({partition.data.topic for partition in one.partitions})),
        number(len(one.partitions)),
        Cell(ago(one.beat_ms, now_ms), "num"),
        _last_error(one, now_ms),
    )


def _last_error(one: LinkStatus, now_ms: int) -> Cell:
    """When, what, and the next step; of a link that its worker has ended, the state says what."""
    if not one.last_error:
        return Cell(NOTHING)
    when = f"{ago(one.last_error_ms, now_ms)} ago"
    if one.problem:
        return Cell(when, "soft")
    hint = "" if one.running or not one.last_error_hint else f" ({one.last_error_hint})"
    return Cell(when, "soft", note=f"{one.last_error}{hint}")
