"""What runs, and which topics are between."""

from collections.abc import Mapping

from tests.figures.drawing import BLUE, GREEN, PALE, VIOLET, WHITE, YELLOW, Box, Drawing

TOPICS_X, WORKER_X = 340, 740

TOPICS = (
    ("requests", "requests and answers", "txn-requests, ack-requests,\nsnapshot-requests, ...", 56),
    ("data", "topics of applications", "orders, payments, ...", 140),
    ("outcomes", "outcomes", "txn-markers, txn-snapshots", 207),
    ("published", "published topics", "orders.committed, ...", 267),
    ("logs", "logs of owners", "txn-log, pending-ack-log", 327),
    ("index", "index of native transactions", "aborted-index", 387),
    ("replication", "replication", "replication-positions,\nreplication-markers", 447),
)
"""Name, title, topics, y."""

OWNERS = (
    "coordinators",
    "pending-ack stores",
    "snapshot writers",
    "indexers",
    "group controllers",
    "links, publishes",
)

BY_WORKER = (
    ("requests", "ask, answer"),
    ("outcomes", "write, read"),
    ("published", "copy"),
    ("logs", "append, read back"),
    ("index", "write, recover"),
    ("replication", "claims, positions"),
)


def system() -> str:
    """Applications, other services, topics, a worker with its owners, Spark, a second cluster."""
    title = "Applications, other services, topics, worker, Spark and a second cluster"
    drawing = Drawing(960, 670, title)
    cluster = drawing.frame(Box(TOPICS_X, 20, 270, 510), "Kafka cluster a", fill=WHITE)
    topics = {
        name: drawing.box(
            Box(TOPICS_X + 16, y, 238, 54 if "\n" not in lines else 70),
            title,
            lines.split("\n"),
            fill=PALE if name in ("data", "published") else VIOLET,
        )
        for name, title, lines, y in TOPICS
    }
    drawing.frame(Box(WORKER_X, 20, 200, 510), "Worker (Faust)", fill=GREEN)
    for number, name in enumerate(OWNERS):
        drawing.box(Box(WORKER_X + 16, 52 + 79 * number, 168, 50), name, fill=WHITE)
    for name, label in BY_WORKER:
        end = topics[name].right()
        drawing.arrow([(WORKER_X, end[1]), end], label, at=(678, end[1] - 12), both=True)
    _applications(drawing, topics)
    _other_services(drawing, topics["published"])
    _spark_and_second_cluster(drawing, cluster)
    return drawing.svg()


def _applications(drawing: Drawing, topics: Mapping[str, Box]) -> None:
    """What applications send and read."""
    drawing.frame(Box(20, 20, 200, 258), "Applications", fill=WHITE)
    client = drawing.box(
        Box(36, 56, 168, 84),
        "TransactionClient",
        ["writes records with", "the header `txn`"],
        fill=BLUE,
    )
    subscription = drawing.box(
        Box(36, 176, 168, 84), "Subscription", ["reads what was", "committed"], fill=BLUE
    )
    data, outcomes = topics["data"], topics["outcomes"]
    asked = client.right(0.3)
    drawing.arrow([asked, (data.x, asked[1])], "requests", at=(285, asked[1] - 12), both=True)
    begin, end = client.right(0.75), data.left(0.25)
    drawing.arrow([begin, (264, begin[1]), (264, end[1]), end], "records", at=(306, end[1] - 12))
    begin, end = data.left(0.8), subscription.right(0.2)
    drawing.arrow([begin, (264, begin[1]), (264, end[1]), end], "records", at=(306, 195))
    begin = outcomes.left()
    drawing.arrow([begin, (subscription.right()[0], begin[1])], "outcomes", at=(280, 222))


def _other_services(drawing: Drawing, published: Box) -> None:
    """What reads without a library of Stilltide."""
    services = drawing.box(
        Box(20, 290, 200, 84),
        "Other services",
        ["Java, Go, Connect, Flink, ...", "read_committed,", "no library of Stilltide"],
        fill=WHITE,
    )
    begin = published.left()
    end = (services.right()[0], begin[1])
    drawing.arrow([begin, end], "committed records", at=(280, begin[1] - 12))


def _spark_and_second_cluster(drawing: Drawing, cluster: Box) -> None:
    """What reads in batch, and what is copied."""
    spark = drawing.box(
        Box(20, 570, 200, 80),
        "Spark jobs",
        ["stilltide audit,", "read_committed in batch"],
        fill=YELLOW,
    )
    begin, end = (cluster.x, 460), spark.top()
    drawing.arrow([begin, (end[0], 460), end], "data, outcomes, snapshots", at=(228, 448))
    second = drawing.box(
        Box(TOPICS_X, 570, 270, 80),
        "Kafka cluster b",
        ["the same topics,", "with a worker of its own"],
        fill=VIOLET,
    )
    drawing.arrow([cluster.bottom(0.15), second.top(0.15)])
    drawing.arrow([second.top(0.85), cluster.bottom(0.85)])
    drawing.text((475, 554), "a link for each direction", size=12, anchor="middle")
    other = drawing.box(
        Box(WORKER_X, 570, 200, 80), "Worker of cluster b", ["the same owners"], fill=GREEN
    )
    drawing.arrow([other.left(), second.right()], both=True)
