"""Strangers at the coordinator's port: nginx with the shipped configuration, and what of it reaches the SuperLink."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from deploy.machines import Machine, needs_nginx, proxy, until_listening
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmm.core.errors import FedmmError
from fedmm.deploy import processes
from fedmm.deploy.federation import prepare, register
from fedmm.deploy.layout import Federation
from fedmm.sites.credentials.certificates import client_context, issue_certificates
from fedmm.sites.credentials.keys import public_keys

pytestmark = needs_nginx

GIGABYTE, MEGABYTE = 1 << 30, 1 << 20
TYPE = f"Content-Type: {PROTOBUF_MEDIA_TYPE}"
AT_ONCE = 16
"""Objects that one address may have under way."""
UNHURRIED = {"client_body_timeout   10s": "client_body_timeout 600s"}
"""For requests that wait for each other: none ends by itself meanwhile."""
ELSEWHERE = (
    "/", "/v1/control/StartRun", "/v1/runtime/pull-messages", "//v1/control/x", "/v1//control/x", "//v1//control/x",
    "//v1/runtime/x", "/v1/./control/x", "/v1/fleet/../control/x", "/v1/fleet/../../v1/control/x",
    "/v1/fleet/%2e%2e/control/x", "/v1/fleet/%2E%2E/control/x", "/v1/fleet/.%2e/control/x", "/v1/fleet/..%2fcontrol/x",
    "/v1/fleet/%2e%2e%2fcontrol%2fx", "/v1%2fcontrol%2fx", "/%76%31/control/x", "/v1/fleet/x/../../control/x",
    "/v1/fleet/push-object/../../control/x", "/V1/FLEET/x", "/v1/fleetx", "/docs", "/openapi.json",
)  # fmt: skip
"""Paths that are not for nodes, in all the spellings that a server might take for one of the control API's."""


def door(machine: Machine, address: str = "127.0.0.1") -> ssl.SSLSocket:
    """A connection to the proxy as anyone on the network has it, from an address of loopback."""
    trusting = ssl.create_default_context(cafile=str(machine.federation.certificates / "ca.crt"))
    plain = socket.create_connection(("127.0.0.1", machine.outside), timeout=600, source_address=(address, 0))
    return trusting.wrap_socket(plain, server_hostname="localhost")


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def status(connection: ssl.SSLSocket) -> int:
    """The status of the answer; 0 where the connection was closed without one."""
    answer = b""
    while b"\r\n" not in answer:
        piece = connection.recv(4096)
        if not piece:
            return 0
        answer += piece
    return int(answer.split(b" ")[1])


def post(machine: Machine, path: str, size: int, *, chunked: bool = False, sent: int | None = None) -> int:
    """The answer to a body of so many bytes from someone without a key.

    chunked: it does not say its size. sent: how much of it is sent.
    """
    how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    with closing(door(machine)) as connection:
        left = size if sent is None else sent
        with suppress(OSError):  # refused and closed while there was more to send
            connection.sendall(head(path, TYPE, how))
            while left > 0:
                piece = bytes(min(left, MEGABYTE))
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                left -= len(piece)
            if chunked:
                connection.sendall(b"0\r\n\r\n")
        return status(connection)


def refused(machine: Machine, path: str, addresses: Sequence[str], wanted: int) -> int:
    """How many of the requests that these addresses begin, and do not end, are answered by 503.

    wanted: as many are waited for; all others wait for the rest of their bodies.
    """
    found, deadline = 0, time.monotonic() + 100
    with ExitStack() as stack:
        waiting = []
        for address in addresses:
            waiting.append(each := stack.enter_context(closing(door(machine, address))))
            each.sendall(head(path, "Content-Length: 1000"))
            each.settimeout(0.01)
        while found < wanted and time.monotonic() < deadline:
            for each in list(waiting):
                with suppress(TimeoutError):
                    assert status(each) == 503
                    waiting.remove(each)
                    found += 1
    return found


def prepared(machine: Machine, *sites: str) -> None:
    prepare(machine.federation, machine.inside, sites, known_as=["localhost"])


# nginx alone: what would be passed on is answered by 502 --------------------------------------------------------------


def test_the_proxy_passes_on_nothing_but_what_nodes_ask(machine: Machine) -> None:
    prepared(machine)
    with proxy(machine):
        for path in ELSEWHERE:
            assert post(machine, path, 0) == 403, path
        assert post(machine, "/v1/fleet/x", 0) == 502


def test_bodies_have_a_bound_whether_they_say_their_size_or_not(machine: Machine) -> None:
    prepared(machine)
    with proxy(machine):
        for path, bound in {"/v1/fleet/push-object": 16, "/v1/fleet/pull-messages": 1}.items():
            assert post(machine, path, bound * MEGABYTE) == 502
            assert post(machine, path, bound * MEGABYTE + 1, sent=0) == 413
            assert post(machine, path, (bound + 1) * MEGABYTE, chunked=True) == 413
        assert post(machine, "/v1/fleet/push-object", GIGABYTE, sent=0) == 413


@pytest.mark.parametrize(
    ("path", "addresses", "allowed"),
    [
        ("/v1/fleet/push-object", ["127.0.0.1"] * 26, 16),
        ("/v1/fleet/pull-messages", ["127.0.0.1"] * 58, 48),
        ("/v1/fleet/push-object", [f"127.0.0.{2 + place // 15}" for place in range(74)], 64),
    ],
)
def test_requests_under_way_have_a_bound(machine: Machine, path: str, addresses: list[str], allowed: int) -> None:
    prepared(machine)
    with proxy(machine, UNHURRIED):
        assert refused(machine, path, addresses, len(addresses) - allowed) == len(addresses) - allowed


@pytest.mark.parametrize(
    "begun", [b"POST /v1/fleet/push-object HTTP/1.1\r\nHost:", head("/v1/fleet/x", "Content-Length: 9")]
)
def test_a_request_that_stalls_is_ended(machine: Machine, begun: bytes) -> None:
    prepared(machine)
    quick = {
        "client_header_timeout 10s": "client_header_timeout 1s",
        "client_body_timeout   10s": "client_body_timeout 1s",
    }
    with proxy(machine, quick), closing(door(machine)) as connection:
        connection.sendall(begun)
        assert status(connection) in (0, 408)


def test_an_address_that_asks_too_often_is_held_off(machine: Machine) -> None:
    prepared(machine)
    slow = {"rate=200r/s": "rate=1r/m", "burst=400": "burst=3"}
    with proxy(machine, slow):
        assert [post(machine, "/v1/fleet/x", 0) for _ in range(6)] == [502] * 4 + [503] * 2


def test_a_proxy_that_asks_for_certificates_lets_only_sites_in(machine: Machine) -> None:
    prepared(machine, "hospital-a")
    certificates, keys = machine.federation.certificates, machine.federation.keys
    stranger = Federation(machine.folder / "elsewhere")
    prepare(stranger, machine.inside, ["hospital-a"])
    (made,), (foreign,) = (
        issue_certificates(machine.federation.keys, machine.federation.certificates),
        issue_certificates(stranger.keys, stranger.certificates),
    )
    assert issue_certificates(machine.federation.keys, machine.federation.certificates) == []
    authority = certificates / "ca.crt"
    with proxy(
        machine, {"# ssl_client_certificate": "ssl_client_certificate", "# ssl_verify_client": "ssl_verify_client"}
    ):

        def answered(context: ssl.SSLContext) -> int:
            with httpx.Client(verify=context, timeout=600) as client:
                return client.post(f"https://localhost:{machine.outside}/v1/fleet/x").status_code

        assert answered(client_context(authority, made, keys / "hospital-a")) == 502
        assert answered(client_context(authority, None, keys / "hospital-a")) == 400
        assert answered(client_context(authority, foreign, stranger.keys / "hospital-a")) == 400
        servers = ssl.create_default_context(cafile=str(authority))
        servers.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        assert answered(servers) == 400  # of the same authority, but for servers
    with pytest.raises(FedmmError, match=r"does not match superlink\.key"):
        client_context(authority, foreign, keys / "hospital-a")


# With a SuperLink behind it -------------------------------------------------------------------------------------------


@contextmanager
def superlink(machine: Machine) -> Iterator[int]:
    """The SuperLink as its unit starts it; its process's number."""
    started = machine.start("fedmm-superlink.service")
    try:
        until_listening(machine.inside)
        yield started.pid
    finally:
        processes.stop([started], machine.federation.folder)


def peak(pid: int) -> int:
    """The most memory that a process ever held, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@contextmanager
def activated(machine: Machine, site: str) -> Iterator[tuple[FleetHttpClient, Node]]:
    """A site that the SuperLink lets in through the proxy."""
    path = machine.federation.keys / site
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    signing = NodeAuthHttpInterceptor(key, key.public_key())
    context = client_context(machine.federation.certificates / "ca.crt", path.with_name(f"{site}.pem"), path)
    with FleetHttpClient(f"https://localhost:{machine.outside}", interceptors=[signing], verify=context) as client:
        shown = public_keys(machine.federation.keys)[site]
        answer = client.ActivateNode(ActivateNodeRequest(public_key=shown, heartbeat_interval=30))
        yield client, Node(node_id=answer.node_id)


@pytest.mark.processes
def test_strangers_cost_the_superlink_little_memory_and_a_site_gets_through(machine: Machine) -> None:
    prepared(machine, "hospital-a")
    with superlink(machine) as pid, proxy(machine, UNHURRIED):
        register(machine.federation, print)
        before = peak(pid)
        for _ in range(2):
            assert post(machine, "/v1/fleet/push-object", GIGABYTE) == 413
            assert post(machine, "/v1/fleet/push-object", GIGABYTE, chunked=True) == 413
        assert peak(pid) - before < 64 * MEGABYTE  # none of them reached it
        for path in ELSEWHERE:
            assert post(machine, path, 0) == 403, path
        body = PushObjectRequest(object_content=bytes(16 * MEGABYTE - 100)).SerializeToString()
        with ExitStack() as stack:  # as many at a time as an address may have, each of the greatest size
            crowd = []
            for _ in range(AT_ONCE):
                crowd.append(each := stack.enter_context(closing(door(machine))))
                each.sendall(head("/v1/fleet/push-object", TYPE, f"Content-Length: {len(body)}") + body[:-1])
            for each in crowd:
                each.sendall(body[-1:])
            assert [status(each) for each in crowd] == [401] * AT_ONCE
        assert peak(pid) - before < GIGABYTE
        issue_certificates(machine.federation.keys, machine.federation.certificates)
        with activated(machine, "hospital-a") as (client, node):
            assert not client.PullMessages(PullMessagesRequest(node=node)).messages_list
            part = PushObjectRequest(node=node, run_id=1, object_content=bytes(8 * MEGABYTE))
            with pytest.raises(httpx.HTTPStatusError) as answer:  # of no run, as the SuperLink itself says
                client.PushObject(part)
            assert answer.value.response.headers["content-type"] == "application/json"
