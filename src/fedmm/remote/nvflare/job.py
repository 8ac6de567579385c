"""An NVFlare job as a folder with names of classes and arguments but no code, and the places to run it here.

These are NVFlare's simulator and its proof-of-concept (POC) mode; both listen on loopback only.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import config_folder

CONTROLLER = "fedmm.remote.nvflare.controller.RelayController"
EXECUTOR = "fedmm.remote.nvflare.executor.SiteExecutor"
CLASSES = (CONTROLLER, EXECUTOR)
"""The classes that a job names; sites must allow them."""

BUILT_IN = ("fedmm.runs.on_nvflare:site",)
"""The functions that a job may name as ``site`` without permission."""

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """The clients of a job, and what builds their sites.

    clients: their names. site, arguments: ``module:function``, which makes a handler of packed questions from a
    client's name and these arguments. socket, secret: where the driver listens, and the file with the key to it. log:
    where to look if a client fails.
    """

    clients: Sequence[str]
    site: str
    arguments: Mapping[str, Any]
    socket: Path
    secret: Path
    log: Path

    def write(self, folder: Path) -> None:
        """Write the job to a folder that does not exist yet."""
        config = folder / "app" / "config"
        config.mkdir(parents=True)
        relay = {"socket": str(self.socket), "secret": str(self.secret), "log": str(self.log)}
        site = {"site": self.site, "arguments": dict(self.arguments)}
        _json(
            folder / "meta.json",
            {
                "name": "fedmm",
                "resource_spec": {},
                "min_clients": len(self.clients),
                "mandatory_clients": list(self.clients),
                "deploy_map": {"app": ["@ALL"]},
            },
        )
        _json(
            config / "config_fed_server.json",
            {
                "server": {"task_request_interval": _POLL_SECONDS},
                "workflows": [{"id": "relay", "path": CONTROLLER, "args": relay}],
            },
        )
        _json(
            config / "config_fed_client.json",
            {
                "executors": [
                    {"tasks": ["*"], "executor": {"path": EXECUTOR, "args": site}},
                ],
            },
        )


def _json(path: Path, table: dict[str, Any]) -> None:
    path.write_text(json.dumps({"format_version": 2, **table}, indent=2) + "\n", encoding="utf-8")


_MARK = "FEDMM_NVFLARE"
"""The environment variable by which NVFlare's processes are found."""

_COMMAND_SECONDS = 300.0
_ADMIN = "admin@nvidia.com"
_PROJECT = "fedmm"
_BUILDERS: list[dict[str, Any]] = [
    {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
    {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
    {"path": "nvflare.lighter.impl.cert.CertBuilder"},
    {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
]


@dataclass(frozen=True)
class Place:
    """A folder for all files that NVFlare writes, and the clients of its job."""

    folder: Path
    clients: Sequence[str] = ()
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False)

    @property
    def log(self) -> Path:
        """The output of its processes; the clients' own logs are in the same folder."""
        return self.folder / "nvflare.log"

    def simulate(self, job: Path) -> None:
        """Run a job in the simulator, with one process per client: with fewer, clients would lose their states."""
        names, number, workspace = ",".join(self.clients), str(len(self.clients)), self.folder / "simulator"
        _allow(workspace / "local")
        options = ["-w", str(workspace), "-c", names, "-t", number, "-m", number, "-l", "concise"]
        with self.log.open("ab") as log:
            self._children.append(
                subprocess.Popen(
                    [*_NVFLARE, "simulator", str(job), *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment(),
                    start_new_session=True,
                )
            )

    def deploy(self, job: Path) -> None:
        """Run a job in POC mode: a server and clients with keys and certificates, over TLS."""
        project = self.folder / "project.yml"
        project.write_text(json.dumps(self._project(_free_port())), encoding="utf-8")
        self._nvflare("poc", "prepare", "-i", str(project))
        made = self.folder / "poc" / _PROJECT / "prod_00"
        _listen_on_loopback(made / "server" / "startup" / "fed_server.json")
        for name in ("server", *self.clients):
            _allow(made / name / "local")
        self._nvflare("poc", "start", "--timeout", "120")
        self._nvflare("job", "submit", "-j", str(job))

    def alive(self) -> bool:
        """Return whether any of its processes still runs."""
        return bool(self._processes())

    def runs(self, pid: int) -> bool:
        """Return whether ``pid`` is one of its processes and still runs."""
        import psutil  # noqa: PLC0415 - comes with NVFlare

        with suppress(psutil.Error, OSError):
            return self._ours(psutil.Process(pid))
        return False

    def stop(self, seconds: float = 20.0) -> None:
        """Kill all processes but this one: NVFlare's shutdown takes 20 s, and everything to keep is on disk."""
        import psutil  # noqa: PLC0415 - comes with NVFlare

        deadline = time.monotonic() + seconds
        while processes := self._processes():
            require(time.monotonic() < deadline, f"process {processes[0].pid} of NVFlare cannot be stopped")
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(processes, timeout=1.0)
        for child in self._children:
            child.wait()

    def _processes(self) -> list[Any]:
        import psutil  # noqa: PLC0415 - comes with NVFlare

        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and self._ours(process):
                    found.append(process)
        return found

    def _ours(self, process: Any) -> bool:
        return bool(process.environ().get(_MARK) == str(self.folder) and process.status() != "zombie")

    def _nvflare(self, *arguments: str) -> None:
        command = f"`nvflare {' '.join(arguments[:2])}`"
        with self.log.open("ab") as log:
            try:
                done = subprocess.run(
                    [*_NVFLARE, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment(),
                    check=False,
                    timeout=_COMMAND_SECONDS,
                )
            except subprocess.TimeoutExpired:
                raise FedmmError(
                    f"{command} did not finish within {_COMMAND_SECONDS:g} seconds; {self.log} may say why, and it may "
                    "succeed when tried again"
                ) from None
        if done.returncode:
            raise FedmmError(f"{command} failed with exit code {done.returncode}; {self.log} says why")

    def _environment(self) -> dict[str, str]:
        """Return an environment with this Python and our configuration; NVFlare keeps all its files in the folder."""
        paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return {
            **os.environ,
            "PATH": os.pathsep.join(paths),
            "HOME": str(self.folder),
            "FEDMM_CONFIG": str(config_folder().absolute()),
            "TMPDIR": str(self.folder),
            "NVFLARE_POC_WORKSPACE": str(self.folder / "poc"),
            _MARK: str(self.folder),
        }

    def _project(self, port: int) -> dict[str, Any]:
        org = {"org": "fedmm"}
        listens = {"fed_learn_port": port, "admin_port": port, "default_host": "localhost"}
        participants = [
            {"name": "server", "type": "server", **org, **listens},
            {"name": _ADMIN, "type": "admin", "role": "project_admin", **org},
            *({"name": name, "type": "client", **org} for name in self.clients),
        ]
        return {"api_version": 3, "name": _PROJECT, "participants": participants, "builders": _BUILDERS}


_NVFLARE = (sys.executable, "-m", "nvflare.cli")

PLACES: dict[str, Callable[[Place, Path], None]] = {"simulator": Place.simulate, "poc": Place.deploy}
"""How to start a job in each place."""


def _allow(local: Path) -> None:
    """Let a site or the server load our two classes in jobs; by default it accepts only NVFlare's own."""
    local.mkdir(parents=True, exist_ok=True)
    resources, default = local / "resources.json", local / "resources.json.default"
    found = next((path for path in (resources, default) if path.exists()), None)
    table: dict[str, Any] = json.loads(found.read_text(encoding="utf-8")) if found else {"format_version": 2}
    table["class_allow_list"] = [*table.get("class_allow_list", []), *CLASSES]
    resources.write_text(json.dumps(table, indent=2), encoding="utf-8")


def _listen_on_loopback(config: Path) -> None:
    """Set the server's address to localhost; with any other name it would listen on all addresses."""
    table = json.loads(config.read_text(encoding="utf-8"))
    service = table["servers"][0]["service"]
    service["target"] = f"localhost:{service['target'].rpartition(':')[2]}"
    config.write_text(json.dumps(table, indent=2), encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
