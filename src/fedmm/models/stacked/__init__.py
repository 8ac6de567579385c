"""Many networks of one structure as one program."""
