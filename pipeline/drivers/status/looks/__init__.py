"""What is read only while somebody looks at it."""
