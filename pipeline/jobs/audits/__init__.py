"""The audit of topics: a plan, a run of its checks, and a report with a verdict and evidence."""
