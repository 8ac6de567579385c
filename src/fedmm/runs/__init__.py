"""Runs from files: one, a sweep, a comparison; their folders, and going on with them."""
