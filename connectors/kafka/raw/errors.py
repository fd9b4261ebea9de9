"""The one place where errors of kafka-python become connector errors.

*Source*: `connectors.kafka.errors`: brokers' error codes are the same in both libraries.
"""

import kafka.errors as kafka_python
from confluent_kafka import KafkaError

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.authorization import Access, Caller
from stilltide.connectors.kafka.errors import translate

_ASKED = "stilltide_asked"
"""Attribute of an error of kafka-python: the rights that the failed part of a request needs."""


def check(code: int, *asked: Access) -> None:
    """Raises kafka-python's error for a broker's code; 0 is none.

    Args:
        code: the code.
        asked: the rights that this part of the request needs.
    """
    if code:
        error: Exception = kafka_python.for_code(code)()
        setattr(error, _ASKED, asked)
        raise error


def translate_raw(
    error: kafka_python.KafkaError,
    caller: Caller | str,
    action: str,
    *asked: Access,
    detail: str = "",
) -> ConnectorError:
    """The connector error for an error of kafka-python.

    Args:
        error: kafka-python's error.
        caller: the client, or only the bootstrap servers of the cluster.
        action: the failed action, such as `cannot fetch t/0@7`.
        asked: the rights that the action needs, unless the error names those (`check`).
        detail: further evidence.
    """
    if isinstance(error, kafka_python.BrokerResponseError) and error.errno is not None:
        detail = detail or (str(error) if error.args else "")
        asked = getattr(error, _ASKED, asked)
        return translate(KafkaError(error.errno), caller, action, *asked, detail=detail)
    away = KafkaError._TRANSPORT if error.retriable else KafkaError._FAIL  # noqa: SLF001 - the client's public name begins so
    return translate(KafkaError(away, repr(error)), caller, action, detail=detail)
