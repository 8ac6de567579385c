"""An NVFlare job as a folder, names of classes and their arguments and no code; and where it runs on this machine.

That is its simulator, or its proof of concept. All of it listens on loopback.
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
"""What a job names; sites have to allow it."""

BUILT_IN = ("fedmm.runs.on_nvflare:site",)
"""The functions that a job may name as ``site`` without leave."""

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """Clients, and what makes a site of each.

    clients: their names. site, arguments: ``module:function``, which makes a handler of packed questions from a
    client's name and these arguments. socket, secret: where the driver listens, and the file with the key to it.
    log: where to look when a client fails.
    """

    clients: Sequence[str]
    site: str
    arguments: Mapping[str, Any]
    socket: Path
    secret: Path
    log: Path

    def write(self, folder: Path) -> None:
        """Leave the job in a folder that is not there yet."""
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
"""The variable that all of its processes carry, and by which they are found."""

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
    """A folder for everything that NVFlare writes, and the clients it is to have."""

    folder: Path
    clients: Sequence[str] = ()
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False)

    @property
    def log(self) -> Path:
        """What its processes said; the clients' own logs lie below the same folder."""
        return self.folder / "nvflare.log"

    def simulate(self, job: Path) -> None:
        """Run a job in the simulator, with a process for each client: with fewer they would lose what they hold."""
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
        """Run a job in a proof of concept: a server and clients with keys and certificates, which speak TLS."""
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
        """Whether any of its processes still runs."""
        return bool(self._processes())

    def runs(self, pid: int) -> bool:
        """Whether one of its processes still runs."""
        import psutil  # noqa: PLC0415 - comes with NVFlare

        with suppress(psutil.Error, OSError):
            return self._ours(psutil.Process(pid))
        return False

    def stop(self, seconds: float = 20.0) -> None:
        """End all processes but this one at once: NVFlare's own way takes 20 s, and what is to be kept is on disk."""
        import psutil  # noqa: PLC0415 - comes with NVFlare

        deadline = time.monotonic() + seconds
        while processes := self._processes():
            require(time.monotonic() < deadline, f"process {processes[0].pid} of NVFlare cannot be ended")
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
                    f"{command} did not end within {_COMMAND_SECONDS:g} seconds; {self.log} may say why, and it may do "
                    "when tried again"
                ) from None
        if done.returncode:
            raise FedmmError(f"{command} ended with {done.returncode}; {self.log} says why")

    def _environment(self) -> dict[str, str]:
        """NVFlare finds this Python and our configuration, and its settings and temporary files stay in the folder."""
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
"""By name, how a job is started."""


def _allow(local: Path) -> None:
    """Have a site, or the server, take our two classes in jobs; without this it refuses all but NVFlare's own."""
    local.mkdir(parents=True, exist_ok=True)
    resources, default = local / "resources.json", local / "resources.json.default"
    found = next((path for path in (resources, default) if path.exists()), None)
    table: dict[str, Any] = json.loads(found.read_text(encoding="utf-8")) if found else {"format_version": 2}
    table["class_allow_list"] = [*table.get("class_allow_list", []), *CLASSES]
    resources.write_text(json.dumps(table, indent=2), encoding="utf-8")


def _listen_on_loopback(config: Path) -> None:
    """Give the server's address as localhost; with a name of its own it would listen on all addresses."""
    table = json.loads(config.read_text(encoding="utf-8"))
    service = table["servers"][0]["service"]
    service["target"] = f"localhost:{service['target'].rpartition(':')[2]}"
    config.write_text(json.dumps(table, indent=2), encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
