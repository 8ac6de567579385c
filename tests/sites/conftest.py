"""Sites' tests that need a whole federation use the fixture of the coordinator's tests."""

from deploy.conftest import federation

__all__ = ["federation"]
