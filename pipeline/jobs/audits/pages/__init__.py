"""The HTML page of an audit's report."""
