"""``fedmm deploy`` for coordinators and owners of sites: invitations, keys, the site itself, and its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmm.cli.console import Coordinator, say
from fedmm.core.errors import FedmmError, require
from fedmm.deploy.federation import prepare, register
from fedmm.deploy.layout import Federation, read_settings
from fedmm.sites.config import read_site
from fedmm.sites.owner.audit import Entry
from fedmm.sites.owner.review import approve_experiment, describe_entry, list_experiments, verify

_Site = Annotated[Path, typer.Argument(help="The site's file.", metavar="SITE.toml")]


def deploy_invite(
    federation: Coordinator,
    names: Annotated[list[str] | None, typer.Argument(help="The sites' names.", metavar="NAME...")] = None,
    sites: Annotated[
        Path | None, typer.Option("--all", help="A TOML file of the sites; - reads standard input.")
    ] = None,
    address: Annotated[
        str,
        typer.Option(help="host:port at which sites reach the SuperLink; by default the certificate's host and 9092."),
    ] = "",
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Put the sites' private keys into their invitations.")
    ] = False,
) -> None:
    """Write an invitation for each site: FOLDER/invitations/NAME.toml."""
    from fedmm.deploy.invite import invite, read_sites  # noqa: PLC0415 - needs the extra

    listed = dict(read_sites(sites)) if sites else {}
    for name in names or []:
        require(name not in listed, f"the site {name} is named twice")
        listed[name] = {}
    invite(Federation(federation), listed, address=address, with_keys=with_keys, say=say)


def deploy_accept(
    federation: Coordinator,
    files: Annotated[
        list[Path], typer.Argument(help="The public keys that came back; - reads lines.", metavar="NAME.pub...")
    ],
) -> None:
    """Accept invited sites: store their public keys in keys/, and register them at a running SuperLink."""
    from fedmm.deploy.invite import accept  # noqa: PLC0415 - needs the extra

    accept(Federation(federation), files, say)


def deploy_join(
    invitation: Annotated[
        Path, typer.Argument(help="The invitation; - reads it from standard input.", metavar="INVITATION.toml")
    ],
    out: Annotated[Path, typer.Option(help="The site's file; its key and certificates lie beside it.")] = Path(
        "site.toml"
    ),
    data: Annotated[Path | None, typer.Option(help="Where the site's rows are.")] = None,
    kind: Annotated[str, typer.Option(help="The kind of rows; by default the invitation's.")] = "",
    domain: Annotated[str, typer.Option(help="The domain of the rows; by default the invitation's.")] = "",
    state: Annotated[str, typer.Option(help="The folder for the site's state; state/NAME by default.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Another value of the site's file: section.key=value.")
    ] = None,
    fingerprint: Annotated[
        str,
        typer.Option(help="The fingerprint that the coordinator read out; an invitation with any other is refused."),
    ] = "",
) -> None:
    """Join a federation with an invitation: make the site's key and file. The public key goes to the coordinator."""
    from fedmm.sites.credentials.invitation import join, read_invitation  # noqa: PLC0415 - needs the extra

    path = ""
    if data is not None:
        try:
            path = str(data.expanduser().resolve())
        except (OSError, ValueError) as problem:
            raise FedmmError(f"--data {data} is not a path") from problem
    given = {key: value for key, value in {"kind": kind, "path": path, "domain": domain}.items() if value}
    join(
        read_invitation(invitation), out, given, state=state, settings=settings or (), fingerprint=fingerprint, say=say
    )


def deploy_prepare(
    federation: Coordinator,
    host: Annotated[list[str], typer.Option(help="The host as sites reach it. May be repeated.")],
    port: Annotated[int, typer.Option(help="The SuperLink's own port on this machine.")] = 9093,
    site: Annotated[list[str] | None, typer.Option(help="A site to make a key for here. May be repeated.")] = None,
) -> None:
    """Make a coordinator's folder for sites on other machines: certificates, and how Flower reaches the SuperLink."""
    made = prepare(Federation(federation), port, site or [], known_as=host)
    say(f"made {federation} for a SuperLink at {made.address}, known to sites as {', '.join(host)}")
    say(f"`fedmm deploy invite {federation} NAME...` invites its sites")


def deploy_register(
    federation: Coordinator,
) -> None:
    """Register the keys in keys/NAME.pub at the running SuperLink, which then lets those sites in."""
    deployment = Federation(federation)
    read_settings(deployment)
    register(deployment, say)


def deploy_certify(
    federation: Coordinator,
) -> None:
    """Sign a certificate for every keys/NAME.pub that has none, for a proxy that asks sites for one."""
    from fedmm.sites.credentials.certificates import issue_certificates  # noqa: PLC0415 - needs the extra

    deployment = Federation(federation)
    made = issue_certificates(deployment.keys, deployment.certificates)
    for path in made:
        say(f"made {path}; give it to the site, whose file names it as superlink.client_certificate")
    if not made:
        say(f"nothing to do: {Federation(federation).keys} has no .pub without its .pem")


def deploy_key(
    path: Annotated[Path, typer.Argument(help="The file for the private key, named after the site.", metavar="FILE")],
) -> None:
    """Make a site's key on the site's own machine; only FILE.pub goes to the coordinator."""
    from fedmm.sites.credentials.keys import make_node_key  # noqa: PLC0415 - needs the extra

    make_node_key(path)
    say(f"made {path} and {path}.pub")


def deploy_site(
    files: Annotated[
        list[Path],
        typer.Argument(help="The site's file; several for sites that share a process.", metavar="SITE.toml..."),
    ],
) -> None:
    """Run a site until it is stopped: it polls its SuperLink for questions and answers them itself."""
    from fedmm.sites.node import run_sites, say_to_stderr  # noqa: PLC0415 - Flower

    run_sites([read_site(file) for file in files], say_to_stderr)


def deploy_approve(
    file: _Site,
    what: Annotated[
        str | None,
        typer.Argument(help="The experiment: 8 or more characters of its hash, or its file.", metavar="HASH|FILE.toml"),
    ] = None,
) -> None:
    """List the experiments that a site was asked to run, or approve one (policy.require_approval)."""
    config = read_site(file)
    if what is not None:
        say(f"approved {approve_experiment(config, what)}")
        return
    for line in list_experiments(config) or ["no experiment was asked for"]:
        say(line)


def deploy_audit(
    file: _Site,
    json: Annotated[
        bool, typer.Option("--json", help="Print the entries as they are stored, one JSON object per line.")
    ] = False,
    expect: Annotated[
        str, typer.Option(help="A head that was stored elsewhere; it must be the hash of an entry.", metavar="HASH")
    ] = "",
) -> None:
    """Check the chain of a site's audit log and print it; exit code 2 if it is broken."""

    def show(entry: Entry) -> None:
        typer.echo(describe_entry(entry, whole=json))

    config = read_site(file)
    for line in verify(config, show, expect):
        typer.echo(line, err=json)
