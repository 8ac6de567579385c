"""Experiments as data: TOML files, their sections, presets and sweeps."""
