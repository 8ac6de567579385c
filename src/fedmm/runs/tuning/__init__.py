"""``fedmm tune``: candidates, rungs of them, and the choice, without target labels."""
