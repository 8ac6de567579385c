"""A web server on loopback with the faults that a download must survive."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one response.

    status: sent instead of the file unless 200. cut: bytes after which the connection drops. flip: index of a byte
    with a flipped bit. ranges: whether range requests are honoured. length: whether Content-Length is sent. endless:
    repeat the file for as long as anyone reads, in ``chunks`` or ``plain``.
    """

    status: int = 200
    cut: int | None = None
    flip: int | None = None
    ranges: bool = True
    length: bool = True
    endless: str = ""


@dataclass
class Site:
    """A web site. files: by path. faults: by path, for successive requests; ``lasting`` repeats the last one."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    lasting: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)

    def fault(self, path: str) -> Fault:
        waiting = self.faults.get(path, [])
        if not waiting:
            return Fault()
        return waiting[0] if self.lasting and len(waiting) == 1 else waiting.pop(0)


class _Answers(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        path, wanted = unquote(urlsplit(self.path).path).lstrip("/"), self.headers.get("Range", "")
        self.site.requests.append((path, wanted))
        fault, content = self.site.fault(path), self.site.files.get(path)
        if content is None or fault.status != 200:
            self.send_error(404 if content is None else fault.status)
            return
        if fault.endless:
            self._never_end(content, chunked=fault.endless == "chunks")
            return
        match = re.fullmatch(r"bytes=(\d+)-", wanted) if fault.ranges else None
        start = int(match[1]) if match else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if fault.length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if fault.flip is not None:
            content = content[: fault.flip] + bytes([content[fault.flip] ^ 1]) + content[fault.flip + 1 :]
        end = len(content) if fault.cut is None else start + fault.cut
        self.wfile.write(content[start:end])

    def _never_end(self, content: bytes, *, chunked: bool) -> None:
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked") if chunked else self.send_header("Connection", "close")
        self.end_headers()
        with suppress(OSError):  # the reader has gone
            while True:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content) if chunked else content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving() -> Iterator[Site]:
    """Serve a site until the end of the block."""
    answers = type("Answers", (_Answers,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), answers) as server:
        answers.site = site = Site(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
