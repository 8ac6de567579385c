"""A site: works with its own rows and its own states, and sends an update."""

from fedmm.deploy.flower_apps import client as app

__all__ = ["app"]
