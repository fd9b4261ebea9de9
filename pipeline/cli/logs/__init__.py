"""The nouns whose records share log entries: coordinators, pending-ack stores and their logs."""
