"""What others than the standard clients and readers do with a cluster."""
