"""The checks of `ensure_topics`, for every connector alike.

*Source*: connectors.ports, `LogAdmin.ensure_topics`.
"""

from collections.abc import Mapping, Sequence

from stilltide.connectors.errors import FatalError
from stilltide.connectors.names import check_config, check_topic_name
from stilltide.schemas.topics import TopicSpec, same_config

PARTITIONS_MAX = 100_000
"""The most partitions of a topic that the Kafka client accepts."""


def check_specs(specs: Sequence[TopicSpec]) -> None:
    """Passes specs that some cluster could meet.

    Raises:
        FatalError: a number of partitions out of bounds, or a topic named twice.
        InvalidTextError: no topic can have a name, or no config a name or a value.
    """
    names: set[str] = set()
    for spec in specs:
        check_topic_name(spec.name)
        for name, value in spec.created_configs.items():
            check_config(spec.name, name, value)
        if not 1 <= spec.partition_count <= PARTITIONS_MAX:
            raise FatalError(
                f"topic {spec.name} would have {spec.partition_count} partitions",
                hint=f"configure 1 to {PARTITIONS_MAX} partitions",
            )
        if spec.name in names:
            raise FatalError(f"topic {spec.name} is named twice", hint="name each topic once")
        names.add(spec.name)


def check_topic(spec: TopicSpec, partition_count: int, configs: Mapping[str, str | None]) -> None:
    """Passes an existing topic that is as `spec` requires; wanted and other configs may differ.

    Raises:
        FatalError: other partitions or configs; names topic, config, and both values.
    """
    if partition_count != spec.partition_count:
        raise FatalError(
            f"topic {spec.name} has {partition_count} partitions, not {spec.partition_count}",
            detail="keys and transactions are placed by the number of partitions",
            hint="configure that number, or use another topic",
        )
    for name, required in spec.configs.items():
        found = configs.get(name)
        if not same_config(found, required):
            raise FatalError(
                f"topic {spec.name} has {name}={found}, not {required}",
                hint=f"kafka-configs.sh --alter --topic {spec.name} --add-config {name}={required}",
            )


def too_few_brokers(spec: TopicSpec, brokers: int) -> FatalError:
    """The error for a topic that needs more replicas than the cluster has brokers."""
    assert spec.replicas is not None
    count = spec.replicas.factor
    return FatalError(
        f"the topic would have {count} replicas, but the cluster has {_brokers(brokers)}",
        detail=f"{_brokers(count - brokers)} missing: each replica needs a broker of its own",
        hint=f"start more brokers, or set replication_factor to {brokers}",
        topic=spec.name,
    )


def _brokers(count: int) -> str:
    return "1 broker" if count == 1 else f"{count} brokers"
