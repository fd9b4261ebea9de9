"""Audits of topics, one module for each check: valid, invalid or unknown, with evidence."""
