"""`stilltide acl`: the rights in Kafka that Stilltide's processes need."""
