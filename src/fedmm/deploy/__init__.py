"""Federations of sites, as the coordinator runs them: the SuperLink, the server's side of a run, eyes on it."""
