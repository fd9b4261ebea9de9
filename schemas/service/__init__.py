"""What the requests of all services share."""
