"""What applications import: `TransactionClient`, `Transaction`, `Subscription`."""
