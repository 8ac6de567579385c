"""Training from Python: ``adapt``, ``solve``, and the loop that drives any engine."""
