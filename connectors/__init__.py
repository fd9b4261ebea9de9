"""Everything that talks to something outside the process; imports schemas and client libraries."""
