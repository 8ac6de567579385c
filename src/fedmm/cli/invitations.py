"""``fedmm deploy invite``, ``accept`` and ``join``: how sites come into a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmm.cli.saying import say
from fedmm.core.errors import FedmmError, require
from fedmm.deploy.layout import Federation

_Coordinator = Annotated[Path, typer.Argument(help="The coordinator's folder.", metavar="FOLDER")]


def deploy_invite(
    federation: _Coordinator,
    names: Annotated[list[str] | None, typer.Argument(help="The sites' names.", metavar="NAME...")] = None,
    sites: Annotated[
        Path | None, typer.Option("--all", help="A TOML file of the sites; - reads standard input.")
    ] = None,
    address: Annotated[
        str, typer.Option(help="host:port as sites reach it; by default the certificate's host and 9092.")
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
    federation: _Coordinator,
    files: Annotated[
        list[Path], typer.Argument(help="The public keys that came back; - reads lines.", metavar="NAME.pub...")
    ],
) -> None:
    """Let invited sites in: put their public keys into keys/, and tell them to the SuperLink where it runs."""
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
    kind: Annotated[str, typer.Option(help="What they are; as the invitation says by default.")] = "",
    domain: Annotated[str, typer.Option(help="Their domain; as the invitation says by default.")] = "",
    state: Annotated[str, typer.Option(help="The folder for what the site keeps; state/NAME by default.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Another value of the site's file: section.key=value.")
    ] = None,
    fingerprint: Annotated[str, typer.Option(help="As the coordinator reads it out; another one is refused.")] = "",
) -> None:
    """Take an invitation: make the site's key and its file; the public key goes back to the coordinator."""
    from fedmm.sites.credentials.invitation import join, read_invitation  # noqa: PLC0415 - needs the extra

    path = ""
    if data is not None:
        try:
            path = str(data.expanduser().resolve())
        except (OSError, ValueError) as problem:
            raise FedmmError(f"--data {data} is no path") from problem
    given = {key: value for key, value in {"kind": kind, "path": path, "domain": domain}.items() if value}
    join(
        read_invitation(invitation), out, given, state=state, settings=settings or (), fingerprint=fingerprint, say=say
    )
