"""A row in a database and records in Kafka, both or neither: `stilltide.databases`."""
