"""What a table that is made from topics holds besides records."""
