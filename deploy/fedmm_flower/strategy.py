"""Any of fedmm's algorithms as a Flower Strategy."""

from fedmm.remote.flower.strategy import MinimaxStrategy

__all__ = ["MinimaxStrategy"]
