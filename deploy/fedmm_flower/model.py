"""The networks, by the name that an experiment's ``[model]`` gives."""

from fedmm.models import MODELS

__all__ = ["MODELS"]
