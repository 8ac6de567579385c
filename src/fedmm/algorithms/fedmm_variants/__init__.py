"""Variants of FedMM with another field, another server or another adversary."""
