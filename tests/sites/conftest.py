"""Sites' tests that need a whole federation start it as those of the coordinator do."""

from deploy.conftest import federation

__all__ = ["federation"]
