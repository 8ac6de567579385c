"""``fedmm tune``: choose a setting by successive halving over candidates, without target labels."""
