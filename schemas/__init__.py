"""Everything whose bytes or identity crosses a process; imports the stdlib and protobuf only."""
