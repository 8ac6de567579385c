"""How a user's own files are written, and how they are read."""
