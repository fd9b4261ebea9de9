"""Real Kafka brokers as child processes, and the jars and the Java that they need."""
