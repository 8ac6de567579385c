"""The server: invites sites, counts their updates, and keeps every round on disk."""

from fedmm.deploy.server_app import app

__all__ = ["app"]
