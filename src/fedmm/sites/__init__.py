"""What runs at a site: its node, rows, owner's policy and keys; it does not import the coordinator's code."""
