"""Whether a subscription has dead letters, and where they go.

*Source*: docs/protocols G2.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.pipeline.client.subscription_options import SubscriptionLimits
from stilltide.pipeline.core.group_choice import is_pattern
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.errors import ConfigError, system_topic
from stilltide.schemas.pending_ack.dead_letters import dead_letter_topic as default_topic
from stilltide.schemas.topics import is_system_topic, is_topic_name


class DeadLetterNames(NamedTuple):
    """Where dead letters go.

    Attributes:
        group: group of the subscription.
        topics: topics of the subscription.
        topic: topic of all dead letters; None: each topic has its own, `<topic>-<group>-DLQ`.
    """

    group: str
    topics: Sequence[str]
    topic: str | None

    def of(self, topic: str) -> str:
        """The dead-letter topic of a topic."""
        return self.topic or default_topic(topic, self.group)


def dead_letters_of(
    options: SubscriptionOptions,
    limits: SubscriptionLimits,
    *,
    dead_letter_topic: str | None,
    acknowledgements: bool,
) -> DeadLetterNames | None:
    """The names for the arguments of `Subscription`; None: messages are delivered without a limit.

    Raises:
        ConfigError: arguments that contradict each other, a name that Kafka does not allow, or a
            topic that the subscription reads itself.
        SystemTopicError: the dead-letter topic is one of Stilltide's own.
    """
    if limits.deliveries_max == math.inf:
        if dead_letter_topic is not None:
            raise ConfigError(
                "`dead_letter_topic` has no effect without `deliveries_max`",
                hint="say after how many deliveries a message becomes a dead letter",
            )
        return None
    if not acknowledgements:
        raise ConfigError(
            "`deliveries_max` has no effect without acknowledgements",
            hint="make the subscription with `acknowledgements=True`",
        )
    for pattern in filter(is_pattern, options.topics):
        if dead_letter_topic is None:
            raise ConfigError(
                f"the pattern {pattern!r} does not say where dead letters go",
                detail="each topic would need a dead-letter topic of its own before it is read",
                hint="give one `dead_letter_topic` for all topics",
            )
    names = DeadLetterNames(options.group, options.topics, dead_letter_topic)
    for name in map(names.of, options.topics):
        if is_system_topic(name):
            raise system_topic(name, hint="name another dead-letter topic")
        if not is_topic_name(name):
            raise ConfigError(
                f"Kafka allows no topic of the name {name!r} for dead letters",
                hint="give `dead_letter_topic`: at most 249 of a-z, A-Z, 0-9, `.`, `_` and `-`",
            )
        if name in options.topics:
            raise ConfigError(
                f"the dead letters would go to {name!r}, which the subscription reads itself",
                hint="name another `dead_letter_topic`, or subscribe to other topics",
            )
    return names
