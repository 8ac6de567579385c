"""Rounds between sites that do not trust each other, by Flower's messages; the only place that imports ``flwr``."""
