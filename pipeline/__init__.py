"""The product: pure core, drivers, agents, client library, jobs and CLI."""
