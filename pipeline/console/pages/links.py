"""The page of links between clusters, and of publishes to other topics."""

from stilltide.pipeline.console.ids import LINKS, link_cell, partition_cell
from stilltide.pipeline.console.views import (
    NOTHING,
    ROWS_MAX,
    UNKNOWN,
    Cell,
    PageSection,
    PageView,
    age_text,
    ago,
    columns,
    number,
    table,
)
from stilltide.pipeline.core.status.findings import link_state
from stilltide.pipeline.core.status.values import Aged, LinkStatus, SystemStatus
from stilltide.schemas.values import ClusterName

_LINKS = columns(
    "from", "state", "lag#", "a second#", "topics#", "partitions#", "heard of#", "last error"
)
_PARTITIONS = columns("from", "partition", "passed to#", "lag#")

_FARTHEST = 5
"""Partitions of all links into a cluster that are shown together: those with the most lag."""

PARAMS = ("cluster", "link")


def links(view: PageView) -> tuple[PageSection, ...]:
    """The links into each cluster, or the one that was chosen."""
    status, cluster, chosen = view.status, view.query.get("cluster"), view.query.get("link")
    return tuple(
        _into(status, target, _chosen(into, chosen), is_chosen=chosen is not None)
        for target, into in status.links.items()
        if chosen is None or target == cluster
    )


def _chosen(
    links: Aged[tuple[LinkStatus, ...]], source: str | None
) -> Aged[tuple[LinkStatus, ...]]:
    if source is None:
        return links
    return links.of(lambda all_links: tuple(it for it in all_links if it.source == source))


def _into(
    status: SystemStatus,
    target: ClusterName,
    links: Aged[tuple[LinkStatus, ...]],
    *,
    is_chosen: bool,
) -> PageSection:
    there = status.cluster(target)
    away = there.brokers if there is not None and there.away else None
    all_links = links.value or ()
    placed = [(link, partition) for link in all_links for partition in link.partitions]
    placed.sort(key=lambda it: -(it[1].lag or 0))
    partitions = [
        (
            link_cell(target, link.source),
            partition_cell(target, partition.data),
            number(partition.source_to),
            number(partition.lag),
        )
        for link, partition in placed
    ]
    return PageSection(
        f"Links into {target}",
        note="Lag is counted in offsets of the source that the link has not passed. The rate is"
        " that of the last ten seconds. The last error is kept when a link runs again, and when"
        " it is restarted; a link that runs has got over it. Below: partitions, the farthest behind"
        " first.",
        age=age_text(links, status.now_ms),
        problem=links.problem or (away.problem if away else ""),
        hint=links.hint or (away.hint if away else ""),
        empty="" if links.value is None else "No link copies to this cluster.",
        tables=(
            *table(f"Links into {target}", _LINKS, [_link(it, status) for it in all_links]),
            *table(
                f"Partitions of links into {target}",
                _PARTITIONS,
                partitions,
                elsewhere="" if is_chosen else "the page of a link has its partitions",
                rows_max=ROWS_MAX if is_chosen else _FARTHEST,
            ),
        ),
        links=(Cell("all links", href=LINKS),) if is_chosen else (),
    )


def _link(link: LinkStatus, status: SystemStatus) -> tuple[Cell, ...]:
    now_ms = status.now_ms
    kind = "idle" if link.away else "good" if link.running and not link.problem else "bad"
    state = Cell(link_state(link, status), kind, note=link.problem)
    return (
        link_cell(link.target, link.source),
        state,
        number(None if link.away else link.lag),
        Cell(UNKNOWN if link.rate is None else f"{link.rate:,.0f}", "num"),
        number(len({partition.data.topic for partition in link.partitions})),
        number(len(link.partitions)),
        Cell(ago(link.beat_ms, now_ms), "num"),
        _last_error(link, now_ms),
    )


def _last_error(link: LinkStatus, now_ms: int) -> Cell:
    """When, what, and the next step; of a link that its worker has ended, the state says what."""
    if not link.last_error:
        return Cell(NOTHING)
    when = f"{ago(link.last_error_ms, now_ms)} ago"
    if link.problem:
        return Cell(when, "soft")
    hint = "" if link.running or not link.last_error_hint else f" ({link.last_error_hint})"
    return Cell(when, "soft", note=f"{link.last_error}{hint}")
