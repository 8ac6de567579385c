"""Rounds between processes without shared memory: packed messages, and the frameworks that carry them."""
