"""Columns of tables as numbers, in one place or agreed between sites."""
