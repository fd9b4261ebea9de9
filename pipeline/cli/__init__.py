"""The command `stilltide`, one module per noun."""
