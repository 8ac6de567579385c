"""The shipped firewall: other accounts of the coordinator's machine do not reach the SuperLink's own port."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.shipped import FOLDER, INSIDE
from deploy.test_namespaces import may_make_namespaces

NFT = shutil.which("nft", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
RULES = (FOLDER / "nftables.conf").read_text()
CONNECT = """
import os, socket, sys
if int(sys.argv[2]):
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
with socket.socket() as one:
    one.settimeout(60)
    print(one.connect_ex(("127.0.0.1", int(sys.argv[1]))))
"""
LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_the_rule_is_for_the_superlinks_port_and_its_users() -> None:
    (port, users) = re.findall(r"tcp dport (\d+) meta skuid != \{ (.*?) \}", RULES)[0]
    assert (int(port), users) == (INSIDE, '"root", "fedmm", "www-data"')


@pytest.mark.processes
@pytest.mark.skipif(NFT is None, reason="nftables is not installed")
def test_other_accounts_do_not_reach_the_superlinks_port(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("network namespaces need root and ip (iproute2)")
    stranger = pwd.getpwnam("nobody").pw_uid
    service = 4242  # whatever number the service's user has
    rules = tmp_path / "rules"
    rules.write_text(RULES.replace('"root", "fedmm", "www-data"', f"0, {service}"))
    name = f"fedmm-wall-{os.getpid()}"
    inside = ["ip", "netns", "exec", name]

    def reached(user: int) -> bool:
        words = [*inside, sys.executable, "-c", CONNECT, str(INSIDE), str(user)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return done.stdout.strip() == "0"

    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        listening = [*inside, sys.executable, "-c", LISTEN, str(INSIDE)]
        with subprocess.Popen(listening, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            assert reached(stranger)  # without the rule
            done = subprocess.run([*inside, str(NFT), "-f", str(rules)], capture_output=True, text=True, check=False)
            if done.returncode and "Operation not supported" in done.stderr + done.stdout:
                pytest.skip("this kernel has no nftables")
            assert done.returncode == 0, done.stderr
            assert not reached(stranger)
            assert reached(service)
            assert reached(0)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
