"""The server: invites sites, counts their updates, and keeps every round on disk."""

from fedmm.deploy.flower_apps import server as app

__all__ = ["app"]
