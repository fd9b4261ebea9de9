"""What is read only while a page shows it."""
