"""The experiment of a run, from its TOML, and the names of its sites."""

from fedmm.deploy.experiments import deployed_experiment, site_names

__all__ = ["deployed_experiment", "site_names"]
