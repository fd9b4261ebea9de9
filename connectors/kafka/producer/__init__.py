"""Writers on confluent-kafka's producer."""
