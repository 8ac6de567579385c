"""A run's state in Prometheus' text format, at ``/metrics`` of a port on this machine only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.deploy.run_view import RunView, SiteView
from fedmm.sites.config import require_loopback

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_AT_ONCE, _SECONDS = 8, 5.0
_LAST_PORT = 65535

Sample = tuple[dict[str, str], float | None]


def exposition(run: RunView | None) -> str:
    """Return a run in Prometheus' text format; without a run, only that there is none."""
    lines: list[str] = []

    def family(name: str, kind: str, help: str, samples: Iterable[Sample]) -> None:
        known = {_labels(labels): value for labels, value in samples if value is not None}  # no series twice
        if known:
            lines.extend([f"# HELP fedmm_{name} {help}", f"# TYPE fedmm_{name} {kind}"])
            lines.extend(f"fedmm_{name}{labels} {_value(value)}" for labels, value in known.items())

    family("runs", "gauge", "Number of runs shown here: 1, the newest, or 0.", [({}, 0.0 if run is None else 1.0)])
    if run is None:
        return "\n".join(lines) + "\n"
    one = {"run": run.name}
    family("run_at_work", "gauge", "Whether the run's server is running.", [(one, float(run.at_work))])
    family("round", "gauge", "Finished rounds.", [(one, run.round)])
    family("rounds_planned", "gauge", "Planned rounds.", [(one, run.rounds)])
    family("round_seconds", "gauge", "Seconds of the last round.", [(one, run.seconds)])
    family("loss", "gauge", "Mean loss over the sites of the last round.", [(one, run.loss)])
    family("epsilon", "gauge", "Privacy spent, if updates carry noise.", [(one, run.epsilon)])
    family("bytes_up_total", "counter", "Bytes of all updates.", [(one, run.bytes_up)])
    family("bytes_down_total", "counter", "Bytes of all invitations.", [(one, run.bytes_down)])
    family("refused_total", "counter", "Updates that were not counted.", [(one, run.refused)])
    family("status_timestamp_seconds", "gauge", "When the server last reported on its sites.", [(one, run.updated)])
    metrics = [({**one, "name": name}, value) for name, value in run.metrics.items()]
    family("metric", "gauge", "The newest value of each metric.", metrics)

    def of_sites(name: str, kind: str, help: str, value: Callable[[SiteView], float | None]) -> None:
        family(name, kind, help, [({**one, "site": site.name}, value(site)) for site in run.sites])

    of_sites("site_online", "gauge", "Whether the site is connected.", lambda site: site.online)
    of_sites("site_last_round", "gauge", "The last round that the site answered.", lambda site: site.round)
    of_sites("site_last_answer_timestamp_seconds", "gauge", "When that round ended.", lambda site: site.answered)
    of_sites("site_seconds", "gauge", "Seconds the site took for it, by its own report.", lambda site: site.seconds)
    of_sites("site_refused_total", "counter", "The site's updates that were not counted.", lambda site: site.refused)
    return "\n".join(lines) + "\n"


class MetricsServer(ThreadingHTTPServer):
    """Answers ``GET /metrics`` and nothing else, on this machine only, to a few clients at a time.

    view: returns the run as it stands. port: 0 for any free one. Other hosts' names (DNS rebinding) are refused.
    """

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, view: Callable[[], RunView | None], port: int, host: str = "127.0.0.1") -> None:
        require_loopback(host, "the metrics' endpoint")
        require(0 <= port <= _LAST_PORT, f"the port must be from 0 to {_LAST_PORT}, not {port}")
        self._view = view
        self._reading = threading.Lock()
        self._free = threading.BoundedSemaphore(_MOST_AT_ONCE)
        try:
            super().__init__((host, port), _Handler)
        except OSError as problem:
            raise FedmmError(f"nothing can listen at {host}:{port}: {problem.strerror}") from problem

    def text(self) -> str:
        """Return the response body."""
        with self._reading:
            return exposition(self._view())

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = _SECONDS
    server_version, sys_version = "fedmm", ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in ("127.0.0.1", "localhost", self.server.server_address[0]):
            self.send_error(403)
        elif self.path != "/metrics":
            self.send_error(404)
        else:
            content = self.server.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


def _labels(labels: dict[str, str]) -> str:
    inside = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escape(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode()  # JSON may hold a lone surrogate, which cannot be encoded
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _value(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
