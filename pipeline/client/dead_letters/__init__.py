"""Messages that failed too often: moved to their dead-letter topic, and back again."""
