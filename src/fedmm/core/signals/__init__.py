"""Signals of how good a model is, most of them without target labels, and how to read them."""
