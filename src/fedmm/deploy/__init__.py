"""The coordinator's side of a federation of sites: the SuperLink, the server of a run, and views of it."""
