"""The reference of system topics, from `stilltide.schemas.topics`."""

from stilltide.schemas.topics import TopicSpec, system_topics
from tests.site.reference.text import code, table

_HEAD = """\
# System topics

Workers create these topics at their start. A worker refuses to start on a topic whose *required*
configs or number of partitions differ. Other values of *wanted* configs lead to a warning, and
`stilltide topics check --apply` sets them. [Sizing](../sizing.md#system-topics) says what each
topic grows with, and [wire formats](formats.md) what its records hold.

"""


def specs() -> list[tuple[TopicSpec, str]]:
    """Every system topic, with what sets the number of its partitions."""
    first, second = (
        system_topics(coordinators=2, partitions=3),
        system_topics(coordinators=4, partitions=6),
    )
    return [
        (one, _partitions(one.partition_count, other.partition_count))
        for one, other in zip(first, second, strict=True)
    ]


def _partitions(first: int, second: int) -> str:
    if first == second:
        return str(first)
    return code("coordinators" if first == 2 else "partitions")


def page() -> str:
    """The text of the page."""
    parts = [
        _HEAD,
        table(("topic", "partitions"), [(code(one.name), count) for one, count in specs()]),
    ]
    for one, count in specs():
        rows = [
            *((code(name), code(value), "required") for name, value in one.configs.items()),
            *((code(name), code(value), "wanted") for name, value in one.wanted.items()),
        ]
        parts += [
            f"\n## {one.name}\n\nPartitions: {count}.\n\n",
            table(("config", "value", ""), rows),
        ]
    return "".join(parts)
