"""Configuration, building and running: the only room that sees the others."""
