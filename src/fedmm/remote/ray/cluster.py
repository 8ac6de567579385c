"""Where actors live: a Ray on this machine, bound to loopback, or an existing cluster."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from fedmm.core.errors import FedmmError, first_line

_LOOPBACK = "127.0.0.1"
_LONGEST_FOLDER = 40  # a socket's path has at most 107 characters, of which Ray's own names take 65
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's default of 15 lets workers starve on a busy machine
}
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # else Ray replaces 127.0.0.1 by the machine's own address


@dataclass(frozen=True)
class Cluster:
    """A connected Ray: the module itself, and how many cores and GPUs it has for actors.

    local: it was started here, so all its processes run on this machine.
    """

    ray: ModuleType
    cores: int
    gpus: int
    local: bool = False


@contextmanager
def ray_cluster(
    address: str = "", *, cores: int = 0, object_store_bytes: int = 0, folder: Path | None = None
) -> Iterator[Cluster]:
    """Connect to Ray, and disconnect at the end; if Ray is already connected, use it and leave it connected.

    address: of a cluster, as ``ray.init`` takes it; empty starts Ray on this machine, listening on loopback only, and
        stops it at the end. cores: how many a Ray started here has; 0 for those of the machine.
    object_store_bytes: memory for messages of a Ray started here; 0 for Ray's default. folder: for its sockets and
        logs; by default a temporary one, which is removed unless an error ends this.
    """
    with _environment(_ENVIRONMENT) if address else loopback_environment():
        ray = _ray()
        connected = ray.is_initialized()
        own = None if connected or address or folder else _short_folder()
        if not connected:
            _connect(ray, address, _local(cores, object_store_bytes, folder or own))
    if connected:
        yield _describe(ray)
        return
    try:
        if not address:
            _require_loopback(ray)
        yield replace(_describe(ray), local=not address)
    finally:
        ray.shutdown()
    if own:
        shutil.rmtree(own, ignore_errors=True)


def _ray() -> ModuleType:
    try:
        import ray  # noqa: PLC0415 - an optional dependency, and a slow import
    except ModuleNotFoundError as problem:
        raise FedmmError("the engine 'ray' needs Ray: pip install 'fedmm[ray]'") from problem
    module: ModuleType = ray
    return module


def _connect(ray: ModuleType, address: str, local: dict[str, Any]) -> None:
    given: dict[str, Any] = {"address": address} if address else local
    if not address.startswith("ray://"):  # a Ray Client has no folder on the cluster
        given["job_config"] = _not_from_here(ray)
    require_listener(ray, address)
    for tries_left in (2, 1, 0):
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **given)
            return
        except Exception as problem:
            ray.shutdown()
            reason = first_line(problem)
            if tries_left and "timed out during startup" in reason:  # after 30 s, too short for a busy machine
                continue
            where = f"at {address}" if address else "on this machine"
            raise FedmmError(f"Ray cannot be reached {where}: {reason}") from problem


def _not_from_here(ray: ModuleType) -> Any:
    """Return a job whose processes do not search the current folder for modules, which Ray would put before all others.

    They still start in that folder. Ray skips it for jobs that claim to have a working directory.
    """
    job = ray.job_config.JobConfig()
    job._runtime_env_has_working_dir = lambda: True
    return job


def require_listener(ray: ModuleType, address: str) -> None:
    """Raise FedmmError if nothing listens at a host and port; Ray itself would try for minutes, and say little.

    address: as ``ray.init`` takes it; anything but a host and port is left to Ray.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit()):
        return
    for local_address in (
        host.strip("[]"),
        ray.util.get_node_ip_address(),
    ):  # the machine's own, which Ray uses instead of loopback
        try:
            with closing(socket.create_connection((local_address, int(port)), timeout=5.0)):
                return
        except (OSError, OverflowError, UnicodeError):
            if host not in (_LOOPBACK, "localhost"):
                break
    raise FedmmError(f"Ray cannot be reached at {address}: nothing answers there; `ray start --head` makes a cluster")


def _local(cores: int, object_store_bytes: int, folder: Path | None) -> dict[str, Any]:
    return {
        "address": "local",
        "num_cpus": cores or os.cpu_count() or 1,
        "include_dashboard": False,
        "object_store_memory": object_store_bytes or None,
        "_node_ip_address": _LOOPBACK,
        "_temp_dir": str(folder) if folder else None,
    }


@contextmanager
def loopback_environment() -> Iterator[None]:
    """Make a Ray that is started inside listen on loopback only."""
    with _environment({**_ENVIRONMENT, **_ON_LOOPBACK}):
        _ray()
        constants, name = import_module("ray._private.ray_constants"), "ENABLE_RAY_CLUSTER"
        before = getattr(constants, name, None)
        setattr(constants, name, False)  # Ray reads the environment on import, which may have been earlier
        try:
            yield
        finally:
            setattr(constants, name, before)


def _describe(ray: ModuleType) -> Cluster:
    has = ray.cluster_resources()
    return Cluster(ray, int(has.get("CPU", 0)), int(has.get("GPU", 0)))


def _require_loopback(ray: ModuleType) -> None:
    where = ray.util.get_node_ip_address()
    if where != _LOOPBACK:
        raise FedmmError(
            f"Ray listens on {where} and not only on loopback; set {next(iter(_ON_LOOPBACK))}=0 in the environment, "
            "or give the address of a cluster"
        )


def _short_folder() -> Path | None:
    """Create a temporary folder with a name short enough for sockets below it; return None if it is too long."""
    folder = Path(tempfile.mkdtemp(prefix="fedmm-ray-"))
    if len(str(folder)) <= _LONGEST_FOLDER:
        return folder
    folder.rmdir()
    return None


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while, except those that the user has set."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
