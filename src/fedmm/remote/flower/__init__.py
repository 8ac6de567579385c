"""Rounds between sites that do not trust each other, over Flower's messages; the only package that imports ``flwr``."""
