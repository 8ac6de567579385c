"""Federations of sites that are elsewhere: their configuration, processes, keys, and the apps that Flower loads."""
