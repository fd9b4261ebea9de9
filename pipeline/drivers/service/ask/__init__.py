"""What clients, commands and workers use to ask the owners of logs (C1b, J)."""
