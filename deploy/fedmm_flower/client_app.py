"""A site: works with its own rows and its own states, and sends an update."""

from fedmm.deploy.site_app import app

__all__ = ["app"]
