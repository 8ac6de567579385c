"""A federation on Ray: long-lived actors hold the clients, on one machine or a cluster. Only here is ray imported."""

from __future__ import annotations

from fedmm.engines.ray.actors import Actors
from fedmm.engines.ray.cluster import Cluster, ray_cluster
from fedmm.engines.ray.engine import RayEngine
from fedmm.engines.ray.share import Share

__all__ = ["Actors", "Cluster", "RayEngine", "Share", "ray_cluster"]
