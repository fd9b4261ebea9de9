"""Administration of a cluster: topics, offsets, groups, and Kafka's own transactions."""
