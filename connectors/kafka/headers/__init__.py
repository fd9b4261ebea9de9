"""Headers of records whose names are not UTF-8."""
