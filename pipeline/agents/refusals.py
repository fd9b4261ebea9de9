"""Refusals that Faust's client reports, as the error that names operation, resource and principal.

*Source*: docs/protocols C17; aiokafka names the topics in the arguments of its error.
"""

from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import Access, not_allowed, on_group, on_topic
from stilltide.schemas.rights import Operation


def named(error: BaseException, config: KafkaConfig, group: str) -> BaseException:
    """The error itself, unless it is a refusal.

    Args:
        error: what has ended the App on the cluster.
        config: the cluster.
        group: the group of the workers.
    """
    asked: Access | None = None
    if isinstance(error, GroupAuthorizationFailedError):
        asked = on_group(Operation.READ, group)
    elif isinstance(error, TopicAuthorizationFailedError):
        asked = on_topic(Operation.READ, _topic(error))
    if asked is None:
        return error
    made = not_allowed(config.caller, f"cannot read at {config.caller}", asked, repr(error))
    made.__cause__ = error
    return made


def _topic(error: TopicAuthorizationFailedError) -> str:
    """The first topic that the error names."""
    found = error.args[0] if error.args else ""
    names = (
        sorted(map(str, found)) if isinstance(found, set | frozenset | list | tuple) else [found]
    )
    return str(names[0]) if names else ""
