"""Tables that are made from topics, batch by batch: Parquet, Delta and Iceberg."""
