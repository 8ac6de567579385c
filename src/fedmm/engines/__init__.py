"""Engines, which run the rounds; ``in_process`` is the readable reference."""
