"""Rounds between processes that share no memory: packed messages, and the frameworks that carry them."""
