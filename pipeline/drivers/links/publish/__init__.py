"""What a publish does otherwise than a link between two clusters (H7)."""
