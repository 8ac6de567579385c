"""The experiment of a run, from its TOML, and the names of its sites."""

from fedmm.sites.experiments import deployed_experiment, site_names

__all__ = ["deployed_experiment", "site_names"]
