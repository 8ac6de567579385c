"""Processes that are started again when they end, and ended when they should; certificates and keys."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedmm import FedmmError
from fedmm.deploy import processes
from fedmm.deploy.commands import QUIET, environment, superlink_command, supernode_command
from fedmm.deploy.keys import make_certificates, make_node_key, public_keys
from fedmm.deploy.layout import Federation
from fedmm.deploy.lifecycle import LocalSite, down, opened, prepare, resume, up
from fedmm.deploy.site_config import read_site
from fedmm.deploy.supervisor import Kept, Supervisor

SLEEPER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
time.sleep(3600)
"""


def marked_environment(folder: Path) -> dict[str, str]:
    return {**os.environ, processes.MARK: str(folder.resolve())}


def test_everything_that_carries_the_mark_is_ended_whoever_started_it(tmp_path: Path) -> None:
    started = processes.start("one", [sys.executable, "-c", SLEEPER], tmp_path / "log", marked_environment(tmp_path))
    processes.save(tmp_path / "p.json", [started])
    deadline = time.monotonic() + 600
    while len(processes.marked(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGKILL)  # the child is left behind
    assert processes.stop(processes.load(tmp_path / "p.json"), tmp_path) >= 1
    assert processes.marked(tmp_path) == []
    assert not started.alive


def test_a_second_ctrl_c_kills_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(900)"
    )
    started = processes.start("one", [sys.executable, "-c", deaf], tmp_path / "log", marked_environment(tmp_path))
    deadline = time.monotonic() + 600
    while b"deaf" not in (tmp_path / "log").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)

    def impatient(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedmm.deploy.processes.time.sleep", impatient)
        with pytest.raises(KeyboardInterrupt):
            processes.stop([started], tmp_path)
    while started.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not started.alive
    assert processes.stop([started], tmp_path) == 0


TOLD = """
import signal, sys, time
from fedmm.deploy.processes import leaving_when_told
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
with leaving_when_told():
    try:
        print("here", flush=True)
        time.sleep(3600)
    finally:
        print("ended what was begun", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_is_told_to_leave_ends_what_was_begun(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", TOLD], stdout=subprocess.PIPE, text=True) as told:
        assert told.stdout is not None
        assert told.stdout.readline() == "here\n"
        told.send_signal(number)
        assert told.communicate(timeout=600)[0] == "ended what was begun\n"
        assert told.returncode == 128 + number


def test_another_process_with_the_same_number_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    try:
        stale = processes.Started("one", other.pid, 1)
        assert not stale.alive
        processes.stop([stale], tmp_path)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


PARENT = """
import subprocess, sys, time
from fedmm.deploy.bound import bound
sleeper = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(3600)"]
print(subprocess.Popen(bound(sleeper)).pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells children that their parent died")
def test_what_is_bound_ends_with_its_parent_even_one_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.stdout.readline() == "here\n"
        parent.kill()
        assert parent.stdout.read() == ""  # the child, too, has let go of it
    deadline = time.monotonic() + 600
    while processes._status(child)[0] not in ("", "Z", "X"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_ends_is_started_again_later_and_later() -> None:
    said: list[str] = []
    kept = Kept("worker", [sys.executable, "-c", "raise SystemExit(3)"], pause=0.01)
    for _ in range(3):
        kept.due = 0.0
        kept.look(dict(os.environ), said.append)
        assert kept.process is not None
        kept.process.wait()
        kept.look(dict(os.environ), said.append)
    assert [line.split("; ")[0].partition(" after")[0] for line in said] == ["the worker ended with 3"] * 3
    assert [line.rpartition("in ")[2] for line in said] == ["0.02 s", "0.04 s", "0.08 s"]
    assert kept.process is None


def test_ctrl_c_in_a_terminal_reaches_the_supervisor_alone() -> None:
    kept = Kept("worker", [sys.executable, "-c", "import time; time.sleep(3600)"])
    kept.look(dict(os.environ), print)
    assert kept.process is not None
    assert os.getpgid(kept.process.pid) == kept.process.pid != os.getpgid(0)
    kept.end(600.0)
    assert kept.process.returncode == -signal.SIGTERM


def test_a_site_that_could_never_join_is_refused_in_one_sentence(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])
    make_node_key(tmp_path / "a")
    (tmp_path / "junk").write_text("junk")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        for lines, words in (
            ('certificate = "none"\nkey = "a"', r"superlink.certificate cannot be read: .*none: No such file"),
            ('certificate = "junk"\nkey = "a"', r"superlink.certificate is no certificate \(PEM\): .*junk"),
            ('certificate = "ca.crt"\nkey = "none"', r"superlink.key cannot be read: .*none: No such file"),
            ('certificate = "ca.crt"\nkey = "junk"', r"superlink.key is no private key as `fedmm deploy key` makes it"),
            (
                'certificate = "ca.crt"\nkey = "a.pub"',
                r"superlink.key is no private key as `fedmm deploy key` makes it",
            ),
            (
                f'certificate = "ca.crt"\nkey = "a"\nruntime_port = {port}',
                rf"another process listens at superlink.runtime_port {port}",
            ),
        ):
            (tmp_path / "site.toml").write_text(f'[site]\nname = "a"\n[superlink]\naddress = "h:1"\n{lines}\n')
            with pytest.raises(FedmmError, match=words):
                Supervisor(read_site(tmp_path / "site.toml"), print).run()
    text = (tmp_path / "site.toml").read_text().replace('"a"\n', '"a"\nstate = "junk"\n', 1)
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(FedmmError, match=r"nothing can be written to site.state, .*junk: File exists"):
        Supervisor(read_site(tmp_path / "site.toml"), print).run()


def test_a_port_that_another_process_has_is_named_and_nothing_stays(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FedmmError, match=rf"another process listens at 127.0.0.1:{port}"):
            up(Federation(tmp_path), [LocalSite("a", {})], port=port)
    assert processes.marked(tmp_path) == []


def test_the_certificate_is_the_authoritys_and_names_the_hosts(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["link.example.org", "127.0.0.1"])
    before = (tmp_path / "ca.crt").read_bytes()
    make_certificates(tmp_path, ["other"])
    assert (tmp_path / "ca.crt").read_bytes() == before
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    trusting = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    for host, right in (("link.example.org", True), ("127.0.0.1", True), ("elsewhere.example.org", False)):
        assert _handshake(context, trusting, host) is right, host


def test_an_authority_that_is_there_signs_the_next_certificate(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["link.example.org"])
    authority, first = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.pem").read_bytes()
    for name in ("server.pem", "server.key"):
        (tmp_path / name).unlink()
    make_certificates(tmp_path, ["127.0.0.1"])
    assert ((tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.pem").read_bytes() == first) == (authority, False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    assert _handshake(context, ssl.create_default_context(cafile=tmp_path / "ca.crt"), "127.0.0.1")
    for name in ("server.pem", "ca.key"):
        (tmp_path / name).unlink()
    with pytest.raises(FedmmError, match=r"has ca.crt but not server.pem and server.key, and no ca.key"):
        make_certificates(tmp_path, ["127.0.0.1"])


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> bool:
    wires = [ssl.MemoryBIO() for _ in range(4)]
    one = server.wrap_bio(wires[0], wires[1], server_side=True)
    other = client.wrap_bio(wires[2], wires[3], server_hostname=host)
    try:
        for _ in range(4):
            for end in (other, one):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                wires[0].write(wires[3].read())
                wires[2].write(wires[1].read())
    except ssl.SSLError:
        return False
    return True


def test_node_keys_are_openssh_and_their_public_part_is_known_by_site(tmp_path: Path) -> None:
    make_node_key(tmp_path / "site a")
    make_node_key(tmp_path / "b")
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600
    key = load_ssh_private_key((tmp_path / "b").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    keys = public_keys(tmp_path)
    assert set(keys) == {"site a", "b"}
    assert keys["b"].startswith(b"-----BEGIN PUBLIC KEY-----")
    assert public_keys(tmp_path / "nowhere") == {}
    (tmp_path / "c.pub").write_text("no key")
    with pytest.raises(FedmmError, match="is no public key"):
        public_keys(tmp_path)


def test_flower_runs_quietly_and_by_tls_unless_told_otherwise(tmp_path: Path) -> None:
    env = environment(tmp_path / "home")
    assert env.items() >= QUIET.items()
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_HOME"] == str(tmp_path / "home")
    command = superlink_command(Federation(tmp_path), "127.0.0.1", 9000, insecure=False)
    assert {"--enable-supernode-auth", "--ssl-certfile", "--disable-runtime-dependency-installation"} <= set(command)
    assert "--insecure" not in command
    file = tmp_path / "site.toml"
    file.write_text(
        '[site]\nname = "a"\n[superlink]\naddress = "h:1"\ncertificate = "ca.crt"\nkey = "keys/a"\nruntime_port = 77\n'
    )
    command = supernode_command(read_site(file))
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--root-certificates") + 1] == str(tmp_path / "ca.crt")
    assert "--insecure" not in command


@pytest.mark.parametrize("insecure", [True, False])
def test_a_superlink_that_others_could_reach_is_refused(tmp_path: Path, insecure: bool) -> None:
    with pytest.raises(FedmmError, match="a SuperLink without a proxy before it is for this machine alone"):
        up(Federation(tmp_path), [LocalSite("a", {})], host="0.0.0.0", insecure=insecure)
    assert list(tmp_path.iterdir()) == []


def test_a_coordinators_folder_for_sites_elsewhere(tmp_path: Path) -> None:
    made = prepare(Federation(tmp_path / "f"), 9093, ["a"], known_as=["link.example.org"])
    assert made.address == "127.0.0.1:9093"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o700
    assert sorted(public_keys(tmp_path / "f" / "keys")) == ["a"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates = tmp_path / "f" / "certificates"
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    assert _handshake(context, ssl.create_default_context(cafile=certificates / "ca.crt"), "link.example.org")
    assert 'address = "127.0.0.1:9093"' in (tmp_path / "f" / "flower" / "config.toml").read_text()
    assert opened(Federation(tmp_path / "f")) == made


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match="holds no federation"):
        opened(Federation(tmp_path))
    assert down(Federation(tmp_path)) == 0
    with pytest.raises(FedmmError, match=r"there is no run 'digits' in .* \(known: none\)"):
        resume(Federation(tmp_path), "digits", patience=1.0, say=print)
