"""The name of a publish, which stands where other links have the name of their source."""

import pytest

from stilltide.schemas.replication.origins import PublishRoute, publish_of
from stilltide.schemas.replication.positions import BucketKey, decode_key, encode_key
from stilltide.schemas.values import ClusterName, TopicPartition

PUBLISH = PublishRoute("orders", "orders.committed")


def test_a_link_name_names_both_topics():
    """H7: and is in the key of a bucket, byte for byte."""
    assert PUBLISH.link == "publish:orders:orders.committed"
    assert publish_of(PUBLISH.link) == PUBLISH
    data = TopicPartition("orders.committed", 3)
    key = BucketKey(PUBLISH.link, ClusterName("a"), data, 7)
    encoded = bytes.fromhex("000000000000000700000003001f0001")
    encoded += b"publish:orders:orders.committedaorders.committed"
    assert encode_key(key) == encoded
    assert decode_key(encoded) == key


@pytest.mark.parametrize(
    "name", ["a", "publish", "publish:a", "publish:a:", "x:a:b", "publish:a:b:c"]
)
def test_other_names_are_those_of_clusters(name: str):
    """A name that no publish has is not taken for one."""
    assert publish_of(ClusterName(name)) is None
