"""Several runs for one answer: which method to use on a user's own data."""
