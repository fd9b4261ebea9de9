"""What is shipped: its licences, its bill of materials, its known faults, its images by digest."""
