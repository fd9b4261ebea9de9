import kafka.errors as kafka_python
import pytest
from confluent_kafka import KafkaError, KafkaException

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    FencedError,
    InvalidRecordError,
    MissingTopicError,
    NotAuthorizedError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import Caller, on_group, on_id, on_topic, place_of, translate
from stilltide.connectors.kafka.raw.line import check, translate_raw
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import TopicPartition


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, RetriableError),
        (KafkaError._DESTROY_BROKER, RetriableError),
        (KafkaError._ALL_BROKERS_DOWN, RetriableError),
        (KafkaError._TIMED_OUT, RetriableError),
        (KafkaError._MSG_TIMED_OUT, RetriableError),
        (KafkaError._PURGE_INFLIGHT, RetriableError),
        (KafkaError.NOT_LEADER_FOR_PARTITION, RetriableError),
        (KafkaError.REBALANCE_IN_PROGRESS, RetriableError),
        (KafkaError._FENCED, FencedError),
        (KafkaError.ILLEGAL_GENERATION, FencedError),
        (KafkaError.UNKNOWN_MEMBER_ID, FencedError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, MissingTopicError),
        (KafkaError._AUTO_OFFSET_RESET, OffsetOutOfRangeError),
        (KafkaError.OFFSET_OUT_OF_RANGE, OffsetOutOfRangeError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, FatalError),
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordRefusedError),
        (KafkaError.INVALID_TIMESTAMP, RecordRefusedError),
        (KafkaError.INVALID_RECORD, InvalidRecordError),
        (KafkaError.POLICY_VIOLATION, RecordRefusedError),
        (KafkaError.NOT_ENOUGH_REPLICAS, RetriableError),
        (KafkaError.KAFKA_STORAGE_ERROR, RetriableError),
        (KafkaError.UNKNOWN, RetriableError),
        (KafkaError._FATAL, FatalError),
    ],
)
def test_each_code_becomes_one_kind_of_error(code: int, kind: type[ConnectorError]):
    """With the address in the primary line, the client's words as detail, and a hint if any."""
    error = translate(KafkaError(code, "because"), "host:9092", "cannot write to t/0")
    assert type(error) is kind
    assert error.primary == "cannot write to t/0 at host:9092"
    assert error.detail.startswith("because")


def test_a_fatal_error_is_not_tried_again():
    """Whatever its code, an error the client calls fatal is final."""
    error = translate(KafkaError(KafkaError._TRANSPORT, "x", fatal=True), "host:9092", "cannot")
    assert type(error) is FatalError


def test_a_retriable_error_of_an_unlisted_code_is_retriable():
    """The client's own judgement counts where ours is silent."""
    error = translate(KafkaError(KafkaError._FAIL, "x", retriable=True), "host:9092", "cannot")
    assert type(error) is RetriableError


def test_an_exception_is_unwrapped_and_detail_added():
    """What else is known follows the client's words."""
    cause = KafkaException(KafkaError(KafkaError._TIMED_OUT, "timed out"))
    error = translate(cause, "host:9092", "cannot", detail="connection refused")
    assert error.detail == "timed out (_TIMED_OUT); connection refused"
    assert error.hint


def test_the_place_is_read_from_an_error_callbacks_text():
    """The client gives it nowhere else."""
    assert place_of(KafkaError(3, "my.topic-1_x [12]: gone")) == TopicPartition("my.topic-1_x", 12)
    assert place_of(KafkaError(3, "127.0.0.1:9092/1: refused")) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (kafka_python.KafkaConnectionError("refused"), RetriableError),
        (kafka_python.KafkaTimeoutError("late"), RetriableError),
        (kafka_python.NodeNotReadyError(1), RetriableError),
        (kafka_python.RequestTimedOutError(), RetriableError),
        (kafka_python.NotLeaderForPartitionError(), RetriableError),
        (kafka_python.UnknownError(), RetriableError),
        (kafka_python.UnknownTopicOrPartitionError(), MissingTopicError),
        (kafka_python.OffsetOutOfRangeError(), OffsetOutOfRangeError),
        (kafka_python.TopicAuthorizationFailedError(), FatalError),
        (kafka_python.SaslAuthenticationFailedError("wrong"), FatalError),
        (kafka_python.CorruptRecordError("checksum"), FatalError),
        (kafka_python.UnsupportedVersionError("v1"), FatalError),
        (kafka_python.KafkaProtocolError("garbage"), FatalError),
    ],
)
def test_errors_of_kafka_python_become_the_same_kinds(
    error: kafka_python.KafkaError, kind: type[ConnectorError]
):
    """One vocabulary for both libraries; the client's words stay in the detail."""
    ours = translate_raw(error, "host:9092", "cannot fetch t/0@7")
    assert type(ours) is kind
    assert ours.primary == "cannot fetch t/0@7 at host:9092"
    for word in error.args:
        assert str(word) in ours.detail


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Write on topic orders"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "Read on group billing"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Write on transactional id x-1"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Write on topic orders"),
    ],
)
def test_a_refusal_names_operation_resource_and_principal(code: int, said: str):
    """C17: of what the action needs, what is of the refused kind; the hint names the command."""
    asked = (
        on_topic(Operation.WRITE, "orders"),
        on_group(Operation.READ, "billing"),
        on_id(Operation.WRITE, "x-1"),
    )
    caller = Caller("host:9092", "User:shop")
    error = translate(KafkaError(code, "because"), caller, "cannot write", *asked)
    assert isinstance(error, NotAuthorizedError)
    assert error.primary == f"cannot write at host:9092: {said} is not allowed to User:shop"
    assert f"{error.operation} on {error.resource}" == said
    assert error.principal == "User:shop"
    assert "stilltide acl print --component" in error.hint
    assert "--principal User:shop" in error.hint


@pytest.mark.parametrize(
    ("options", "principal"),
    [
        ({}, "User:ANONYMOUS"),
        ({"security.protocol": "SSL"}, "User:ANONYMOUS"),
        ({"security.protocol": "SASL_SSL", "sasl.username": "shop"}, "User:shop"),
        (
            {"security.protocol": "SSL", "ssl.certificate.location": "c.pem"},
            "the subject of the certificate c.pem",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.oauthbearer.client.id": "tide"},
            "the subject of the token of the OAuth client tide",
        ),
    ],
)
def test_the_principal_is_named_as_far_as_the_client_knows_it(
    options: dict[str, str], principal: str
):
    """A certificate's subject and a token's are mapped to a user by the brokers."""
    assert KafkaConfig("host:9092", extra=options).caller.principal == principal


def test_a_part_of_a_request_names_what_was_refused():
    """C17: an answer about many groups has an error for one of them."""
    with pytest.raises(kafka_python.GroupAuthorizationFailedError) as failed:
        check(30, on_group(Operation.DESCRIBE, "billing"))
    error = translate_raw(failed.value, Caller("host:9092", "User:shop"), "cannot describe groups")
    assert "Describe on group billing is not allowed to User:shop" in error.primary
