"""Many networks of one structure, run as one program."""
