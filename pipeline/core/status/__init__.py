"""The state of all clusters at one moment, as values, and the lines in it that need a person."""
