"""Where a round runs: ``in_process`` is the readable reference."""
