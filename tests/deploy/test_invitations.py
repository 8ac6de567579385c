"""Invitations: what a coordinator writes, what a site makes of it, what comes back, and what is refused."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedmm import FedmmError
from fedmm.cli import main
from fedmm.config.toml import write_toml
from fedmm.deploy import invite as inviting
from fedmm.deploy.federation import prepare
from fedmm.deploy.invite import accept, invite, read_sites
from fedmm.deploy.layout import Federation
from fedmm.sites.config import read_site
from fedmm.sites.credentials import invitation as invitations
from fedmm.sites.credentials.invitation import SiteInvitation, join, read_invitation
from fedmm.sites.credentials.keys import describe_key, generate_node_key, make_node_key, public_keys
from fedmm.sites.node import _require_ready

SHARE = {"kind": "share"}


@pytest.fixture
def there(tmp_path: Path) -> Federation:
    federation = Federation(tmp_path / "federation")
    prepare(federation, 9093, [], known_as=["link.example.org"])
    return federation


def invited(there: Federation, *names: str, **more: Any) -> list[Path]:
    return invite(there, {name: {} for name in names}, **more)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def changed(path: Path, /, **values: Any) -> Path:
    """The invitation with other values; None takes one away."""
    table = {**tomllib.loads(path.read_text())["invitation"], **values}
    path.write_text(write_toml({"invitation": {key: value for key, value in table.items() if value is not None}}))
    return path


def test_a_site_joins_with_a_key_of_its_own(there: Federation, tmp_path: Path) -> None:
    said: list[str] = []
    hints = {"kind": "images", "domain": "source"}
    (path,) = invite(there, {"hospital-a": hints}, say=said.append)
    assert (path, mode(path), mode(path.parent)) == (there.invitations / "hospital-a.toml", 0o600, 0o700)
    assert "PRIVATE" not in path.read_text()
    invitation = read_invitation(path)
    assert (invitation.address, invitation.hints) == ("link.example.org:9092", hints)
    assert invitation.fingerprint in said[-1]
    out = tmp_path / "site" / "site.toml"
    join(invitation, out, {"path": "/srv/pictures"}, settings=["site.threads=2"], say=said.append)
    config = read_site(out)
    _require_ready(config)
    assert (config.site.name, config.site.threads, config.state) == ("hospital-a", 2, out.parent / "state/hospital-a")
    assert (config.data.kind, config.data.domain, config.data.path) == ("images", "source", "/srv/pictures")
    assert config.superlink.address == "link.example.org:9092"
    assert config.path(config.superlink.certificate).read_bytes() == (there.certificates / "ca.crt").read_bytes()
    assert mode(config.path(config.superlink.key)) == 0o600
    public = out.parent / "hospital-a.pub"
    assert public.read_text().strip() in said
    assert accept(there, [public], said.append) == ["hospital-a"]
    assert f"accepted hospital-a: {describe_key(public.read_bytes())}" in said
    assert (there.keys / "hospital-a.pub").read_bytes() == public.read_bytes()
    assert accept(there, [public]) == ["hospital-a"]  # once more changes nothing
    assert set(public_keys(there.keys)) == {"hospital-a"}


def test_an_invitation_may_carry_the_key(there: Federation, tmp_path: Path) -> None:
    (path,) = invited(there, "a", with_keys=True)
    assert not (there.keys / "a").exists()
    join(read_invitation(path), tmp_path / "site" / "site.toml", SHARE)
    assert (tmp_path / "site" / "a.pub").read_bytes() == (there.keys / "a.pub").read_bytes()
    assert mode(tmp_path / "site" / "a") == 0o600
    before = path.read_bytes()
    assert invited(there, "a") == invited(there, "a", with_keys=True) == []  # the one copy of its key stays
    assert path.read_bytes() == before


def test_two_sites_share_a_folder_and_nothing_is_overwritten(there: Federation, tmp_path: Path) -> None:
    first, second = map(read_invitation, invited(there, "a", "b"))
    join(first, tmp_path / "a.toml", SHARE)
    join(second, tmp_path / "b.toml", SHARE)
    assert read_site(tmp_path / "a.toml").state != read_site(tmp_path / "b.toml").state
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(FedmmError, match="a already exists and is not overwritten"):
        join(first, tmp_path / "c.toml", SHARE)
    (third,) = map(read_invitation, invited(there, "c"))
    with pytest.raises(FedmmError, match=r"a\.toml already exists"):
        join(third, tmp_path / "a.toml", SHARE)
    other = Federation(tmp_path / "other")
    prepare(other, 9093, [], known_as=["link.example.org"])
    (stranger,) = invite(other, {"c": {}})
    with pytest.raises(FedmmError, match=r"ca\.crt already exists and belongs to another federation"):
        join(read_invitation(stranger), tmp_path / "c.toml", SHARE)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_what_cannot_be_written_leaves_nothing(
    there: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = invitations.write_credential

    def full(path: Path, content: bytes, mode: int) -> None:
        if path.suffix == ".toml":
            raise OSError(28, "No space left on device")
        write(path, content, mode)

    monkeypatch.setattr(invitations, "write_credential", full)
    (path,) = invited(there, "a")
    with pytest.raises(FedmmError, match="cannot be written: No space left"):
        join(read_invitation(path), tmp_path / "site" / "site.toml", SHARE)
    assert list((tmp_path / "site").iterdir()) == []


def test_a_link_at_a_keys_place_is_not_followed(there: Federation, tmp_path: Path) -> None:
    (path,) = invited(there, "a")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FedmmError, match="cannot be written"):
        join(read_invitation(path), tmp_path / "site" / "site.toml", SHARE)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        ({}, [], "say where the site's rows are"),
        ({"kind": "images", "domain": "source"}, [], "say where the site's rows are"),
        ({"kind": "pictures", "path": "x"}, [], "data.kind must be one of"),
        (SHARE, ["site.thread=1"], "unknown key in .* 'thread'"),
        (SHARE, ["data.labels=x"], "data.labels must be a list"),
    ],
)
def test_a_site_file_is_checked_before_anything_is_written(
    there: Federation, tmp_path: Path, data: dict[str, str], settings: list[str], said: str
) -> None:
    (path,) = invited(there, "a")
    with pytest.raises(FedmmError, match=said):
        join(read_invitation(path), tmp_path / "site" / "site.toml", data, settings=settings)
    assert not (tmp_path / "site").exists()


# Hostile invitations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"site": "../../etc/cron.d/a"}, "site's name must be at most 63 letters, digits"),
        ({"site": "a/b"}, "site's name must be at most 63 letters, digits"),
        ({"site": ""}, "site's name must be at most 63 letters, digits"),
        ({"site": ".ssh"}, "site's name must be at most 63 letters, digits"),
        ({"site": "a\n[data]"}, "site's name must be at most 63 letters, digits"),
        ({"site": "Coordinator"}, "site's name must be at most 63 letters, digits"),
        ({"site": "a" * 64}, "site's name must be at most 63 letters, digits"),
        ({"site": 7}, "site of the invitation must be text"),
        ({"site": ["a"]}, "site of the invitation must be text"),
        ({"address": "link.example.org"}, "an address must be host:port"),
        ({"address": "link.example.org:99999"}, "an address must be host:port"),
        ({"address": 'x" insecure=true:1'}, "an address must be host:port"),
        ({"address": "a b:1"}, "an address must be host:port"),
        ({"address": "evil.example.org:9092"}, "changed in transit"),
        ({"certificate": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, "is not a certificate"),
        ({"certificate": "/etc/passwd"}, "is not a certificate"),
        ({"coordinator": "ssh-ed25519 AAAA x"}, "not a public key in OpenSSH format"),
        ({"coordinator": generate_node_key("x")[1].decode()}, "changed in transit"),
        ({"key": "/etc/ssh/ssh_host_rsa_key"}, "not a private key"),
        ({"fingerprint": "0000"}, "changed in transit"),
        ({"fingerprint": None}, "has no fingerprint"),
        ({"version": 2}, "version must be 1, not 2"),
        ({"version": True}, "version must be 1, not True"),
        ({"kind": "exec"}, "unknown kind in the invitation"),
        ({"domain": {"a": 1}}, "domain of the invitation must be text"),
        ({"path": "/etc/shadow"}, "unknown key in .* 'path'"),
        ({"k" * 60_000: 1}, "unknown key in"),
        ({"insecure": True}, "unknown key in .* 'insecure'"),
    ],
)
def test_a_hostile_invitation_is_refused(there: Federation, values: dict[str, Any], said: str) -> None:
    (path,) = invited(there, "a")
    with pytest.raises(FedmmError, match=said) as refused:
        read_invitation(changed(path, **values))
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe", b"[invitation", b"invitation = 1", b"[invitation]\n[superlink]\n", b"a = " + b"[" * 30_000,
        b"# " + b"x" * 70_000,
    ],
    ids=["empty", "binary", "torn", "value", "sections", "nested", "huge"],
)  # fmt: skip
def test_what_is_no_invitation_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "invitation.toml").write_bytes(content)
    with pytest.raises(FedmmError, match=r"is not an invitation|is not valid TOML|has over 65536 bytes"):
        read_invitation(tmp_path / "invitation.toml")


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(FedmmError, match="has over 65536 bytes"):
        read_invitation(Path("/dev/zero"))


def test_only_certificates_and_keys_of_an_invitation_are_written(there: Federation, tmp_path: Path) -> None:
    """Text beside them, which another program might read otherwise, stays behind."""
    (path,) = invited(there, "a")
    table = tomllib.loads(path.read_text())["invitation"]
    changed(path, certificate="evil\n" + table["certificate"], coordinator=table["coordinator"].strip() + " evil")
    join(read_invitation(path), tmp_path / "site" / "site.toml", SHARE)
    for written in (tmp_path / "site").iterdir():
        assert b"evil" not in written.read_bytes()


def test_the_fingerprint_heard_over_the_phone_decides(there: Federation, tmp_path: Path) -> None:
    """Whoever changes an invitation can change its own fingerprint too, and not the one that the coordinator reads."""
    (path,) = invited(there, "a")
    true = read_invitation(path).fingerprint
    forged = read_invitation(path)
    forged = SiteInvitation("a", "evil.example.org:9092", forged.certificate, forged.coordinator, b"", {})
    path.write_text(forged.text())
    with pytest.raises(FedmmError, match="the invitation is not the coordinator's"):
        join(read_invitation(path), tmp_path / "site" / "site.toml", SHARE, fingerprint=true)
    assert not (tmp_path / "site").exists()
    (path,) = invited(there, "a")
    join(read_invitation(path), tmp_path / "site" / "site.toml", SHARE, fingerprint=true.upper().replace("-", " "))


# What comes back ------------------------------------------------------------------------------------------------------


def key_file(folder: Path, name: str, of: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.pub"
    path.write_bytes(generate_node_key(of or name)[1])
    return path


def test_keys_that_nobody_waits_for_are_refused(there: Federation, tmp_path: Path) -> None:
    invited(there, "a", "b")
    mine = key_file(tmp_path / "one", "a")
    accept(there, [mine])
    stolen = tmp_path / "b.pub"
    stolen.write_text(mine.read_text().replace(" a\n", " b\n"))
    ours = tmp_path / "two" / "b.pub"
    ours.parent.mkdir()
    ours.write_text(Path(f"{there.coordinator}.pub").read_text().replace(" coordinator\n", " b\n"))
    for files, said in (
        ([key_file(tmp_path, "stranger")], "stranger was not invited; run `fedmm deploy invite .* stranger`"),
        ([key_file(tmp_path, "a")], "a already has another key"),
        ([stolen], "the key of b already belongs to a"),
        ([ours], "the key of b already belongs to coordinator"),
        ([key_file(tmp_path / "three", "b", of="a")], "holds the key of 'a'; name it after that site"),
        ([tmp_path / "nowhere.pub"], "there is no file"),
        ([tmp_path / "federation"], "cannot be read"),
        ([], "name the files"),
        ([key_file(tmp_path / "four", "b"), key_file(tmp_path / "five", "b")], "two keys were given for b"),
    ):
        with pytest.raises(FedmmError, match=said):
            accept(there, files)
    for content, said in (
        (b"ssh-rsa AAAA b\n", "not a public key"),
        (generate_node_key("b")[1] * 3, "holds the key of ''"),
        (b"x" * 5000, "has over 4096 bytes"),
    ):
        (tmp_path / "b.pub").write_bytes(content)
        with pytest.raises(FedmmError, match=said):
            accept(there, [tmp_path / "b.pub"])
    assert [path.name for path in there.keys.iterdir()] == ["a.pub"]


def test_all_keys_are_accepted_or_none(there: Federation, tmp_path: Path) -> None:
    invited(there, "a")
    with pytest.raises(FedmmError, match="b was not invited"):
        accept(there, [key_file(tmp_path, "a"), key_file(tmp_path, "b")])
    assert list(there.keys.iterdir()) == []


def test_lines_of_keys_come_by_standard_input(
    there: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invited(there, "a", "b")
    lines = b"\n".join(key_file(tmp_path, name).read_bytes() for name in ("a", "b"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert accept(there, [Path("-")]) == ["a", "b"]


def test_a_running_superlink_is_told(there: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Federation] = []
    monkeypatch.setattr(inviting, "answers", lambda made: True)
    monkeypatch.setattr(inviting, "register", lambda federation, say: told.append(federation))
    invited(there, "a")
    accept(there, [key_file(tmp_path, "a")])
    assert told == [there]


# Whom to invite -------------------------------------------------------------------------------------------------------


def test_sites_are_listed_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sites.toml"
    file.write_text('sites = ["a", "b"]\n')
    assert read_sites(file) == {"a": {}, "b": {}}
    file.write_text('[sites.a]\nkind = "images"\ndomain = "source"\n[sites.b]\n')
    assert read_sites(file) == {"a": {"kind": "images", "domain": "source"}, "b": {}}
    for text, said in (
        ("x", "is not valid TOML"), ("", "must list its sites"), ("sites = [1]", "must list its sites"),
        ("sites = 'a'", "must list its sites"), ("sites = ['a', 'a']", "lists a site twice"),
        ("[sites]\na = 1", "must list its sites"), ("[sites.a]\npath = 'x'", "unknown key in .sites.a. 'path'"),
        ("[sites.a]\nkind = 'x'", "sites.a.kind must be one of"), ("[sites.a]\nkind = []", "sites.a.kind must be one"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(FedmmError, match=said):
            read_sites(file)
    with pytest.raises(FedmmError, match="there is no file"):
        read_sites(tmp_path / "nowhere.toml")


def test_an_address_is_the_certificates_or_the_one_given(there: Federation, tmp_path: Path) -> None:
    (path,) = invited(there, "a", address="10.0.0.1:443")
    assert read_invitation(path).address == "10.0.0.1:443"
    (path,) = invited(there, "a")
    assert read_invitation(path).address == "link.example.org:9092"
    alone = Federation(tmp_path / "alone")
    prepare(alone, 9093, [])
    with pytest.raises(FedmmError, match="is only for this machine; give the address"):
        invited(alone, "a")
    six = Federation(tmp_path / "six")
    prepare(six, 9093, [], known_as=["2001:db8::1"])
    (path,) = invited(six, "a")
    assert read_invitation(path).address == "[2001:db8::1]:9092"


def test_who_cannot_be_invited_is_said(there: Federation, tmp_path: Path) -> None:
    plain = Federation(tmp_path / "plain")
    prepare(plain, 9093, [], insecure=True)
    for federation, names, said in (
        (there, (), "name the sites to invite"),
        (there, ("../a",), "site's name must be at most 63 letters"),
        (there, ("A", "a"), "differ only in capital letters"),
        (plain, ("a",), "plain text is for one machine"),
        (Federation(tmp_path / "nowhere"), ("a",), "holds no federation"),
    ):
        with pytest.raises(FedmmError, match=said):
            invited(federation, *names)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)

    def fedmm(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmm", "deploy", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    assert fedmm("prepare", "federation", "--host", "link.example.org")[0] == 0
    Path("sites.toml").write_text('sites = ["a", "b"]\n')
    assert fedmm("invite", "federation", "c", "--all", "sites.toml")[0] == 0
    assert fedmm("invite", "federation", "a", "--all", "sites.toml")[2] == "error: the site a is named twice\n"
    for name in ("a", "b", "c"):
        code, out, err = fedmm(
            "join", f"federation/invitations/{name}.toml", "--out", f"{name}/site.toml", "--kind", "npz",
            "--data", "rows.npz", "--domain", "both",
        )  # fmt: skip
        assert (code, err) == (0, "")
        assert Path(name, f"{name}.pub").read_text().strip() in out.splitlines()
        assert read_site(Path(name, "site.toml")).data.path == str(tmp_path / "rows.npz")
    code, out, _ = fedmm("accept", "federation", *(f"{name}/{name}.pub" for name in ("a", "b", "c")))
    assert (code, out.count("accepted ")) == (0, 3)
    code, _, err = fedmm("join", "nowhere.toml")
    assert (code, err) == (2, "error: there is no file nowhere.toml\n")


def test_the_coordinators_key_line_is_as_ssh_keygen_has_it(tmp_path: Path) -> None:
    make_node_key(tmp_path / "a")
    try:
        done = subprocess.run(
            ["ssh-keygen", "-l", "-f", str(tmp_path / "a.pub")], capture_output=True, text=True, check=False
        )
    except OSError:
        pytest.skip("ssh-keygen is not installed")
    assert describe_key((tmp_path / "a.pub").read_bytes()) in done.stdout


def test_the_policy_is_written_as_comments(there: Federation, tmp_path: Path) -> None:
    (path,) = invited(there, "a")
    join(read_invitation(path), tmp_path / "site" / "site.toml", SHARE)
    text = (tmp_path / "site" / "site.toml").read_text()
    assert "policy" not in tomllib.loads(text)
    uncommented = text[text.index("# [policy]") :].replace("# ", "")
    assert json.loads(json.dumps(tomllib.loads(uncommented)["policy"]["allow_imports"])) == []
