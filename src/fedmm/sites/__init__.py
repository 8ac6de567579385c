"""What runs at a site: its node, its rows, its owner's policy, its keys. Knows nothing of the coordinator."""
