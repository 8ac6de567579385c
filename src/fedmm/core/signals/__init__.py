"""What can be seen of a model without target labels, and what it says."""
