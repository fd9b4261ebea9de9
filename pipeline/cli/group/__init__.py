"""`stilltide group`: consumer groups, and their replication between clusters."""
