"""A federation on Ray: long-lived actors hold clients, on one machine or a cluster. No other package imports ray."""

from __future__ import annotations

from fedmm.remote.ray.actor import ActorShare
from fedmm.remote.ray.actors import Actors
from fedmm.remote.ray.cluster import Cluster, ray_cluster
from fedmm.remote.ray.engine import RayEngine

__all__ = ["ActorShare", "Actors", "Cluster", "RayEngine", "ray_cluster"]
