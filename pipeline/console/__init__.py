"""The console: pages that show the state of all clusters in a browser."""
