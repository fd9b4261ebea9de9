"""A request that is made again and again is encoded once, and its answer stays bytes."""

from kafka.net.connection import KafkaProtocol
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from stilltide.connectors.kafka.raw.group_offsets import RawAnswer, RepeatedRequest

VERSION = 8
Group = OffsetFetchRequest.OffsetFetchRequestGroup


def request() -> OffsetFetchRequest:
    """A question for the offsets of a group."""
    asked = Group(group_id="g", topics=None)
    return OffsetFetchRequest(groups=[asked], min_version=VERSION, max_version=VERSION)


def test_the_broker_sees_the_requests_that_kafka_python_would_send():
    """The bytes are equal but for nothing: each use has its number, and so has its answer."""
    ours, theirs = KafkaProtocol(client_id="test"), KafkaProtocol(client_id="test")
    repeated = RepeatedRequest(request())
    for throttle_time_ms in (0, 7, 0):
        repeated.API_VERSION = VERSION
        plain = request()
        plain.API_VERSION = VERSION
        number = ours.send_request(repeated)
        theirs.send_request(plain)
        assert ours.send_bytes() == theirs.send_bytes()
        response = OffsetFetchResponse(
            throttle_time_ms=throttle_time_ms, groups=[], version=VERSION
        )
        response.with_header(correlation_id=number)
        ((told, answer),) = ours.receive_bytes(response.encode(framed=True, header=True))
        assert told == number
        assert answer == RawAnswer(throttle_time_ms, response.encode())


def test_another_version_is_another_request():
    """A broker that was replaced by an older one gets a request that it can read."""
    protocol, repeated = KafkaProtocol(client_id="test"), RepeatedRequest(request())
    sent: list[bytes] = []
    for version in (VERSION, VERSION + 1):
        repeated.API_VERSION = version
        protocol.send_request(repeated)
        sent.append(protocol.send_bytes())
    assert [it[6:8] for it in sent] == [b"\0\x08", b"\0\x09"]
    assert len(sent[1]) > len(sent[0])
