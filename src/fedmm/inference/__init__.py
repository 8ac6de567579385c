"""Finished runs put to use: predictions, evaluation, export."""
