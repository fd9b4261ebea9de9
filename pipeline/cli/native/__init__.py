"""`stilltide native`: Kafka's own transactions."""
