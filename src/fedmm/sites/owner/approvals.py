"""The experiments that a site was asked for, and its owner's approval of them. Needs torch only for a file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.remote.packed import one_line
from fedmm.sites.config import SiteConfig
from fedmm.sites.owner import ledger as events
from fedmm.sites.owner.audit import AuditLog, read_chain
from fedmm.sites.owner.ledger import Ledger

_HASH = re.compile(r"[0-9a-f]{8,64}")


def list_experiments(config: SiteConfig) -> list[str]:
    """A line for each experiment that was asked for or approved: its hash, whether it is, its runs, and what it is."""
    ledger = Ledger()
    read_chain(config.audit, ledger.take)
    lines = []
    for digest, text in ledger.experiments.items():
        stands = "approved" if digest in ledger.approved else "not approved"
        runs = ", ".join(ledger.asked.get(digest, [])) or "none yet"
        lines.append(one_line(f"{digest[:16]} {stands}; runs: {runs}; {summary(text)}", 1000))
    return lines


def approve_experiment(config: SiteConfig, what: str) -> str:
    """Approve an experiment, by the beginning of its hash or by its file; its whole hash."""
    ledger = Ledger()
    log = AuditLog(config.audit, ledger.take)
    by_hash = _HASH.fullmatch(what) is not None
    digest, text = ("", "") if by_hash else _read(Path(what))
    with log.alone():
        if by_hash:
            found = [each for each in ledger.experiments if each.startswith(what)]
            require(
                len(found) == 1,
                f"{len(found)} experiments that this site was asked for begin with {what}; `fedmm deploy approve "
                f"{config.file.name}` lists them",
            )
            digest = found[0]
        elif digest not in ledger.experiments:
            log.add(events.EXPERIMENT, sync=False, experiment=digest, text=text)
        if digest not in ledger.approved:
            log.add(events.APPROVAL, experiment=digest)
    return digest


def _read(file: Path) -> tuple[str, str]:
    if not file.is_file():
        raise FedmmError(f"{str(file)!r} is neither 8 or more characters of a hash nor a file with an experiment")
    from fedmm.sites.experiments import experiment_text, read_experiment  # noqa: PLC0415 - torch
    from fedmm.sites.owner.policy import read_asked  # noqa: PLC0415 - torch

    asked = read_asked(experiment_text(read_experiment(file, [])))
    return asked.digest, asked.text


def summary(text: str) -> str:
    """An experiment in a line: algorithm, data, network, rounds, batch and noise."""
    tables = tomllib.loads(text)
    run, sent = tables.get("run", {}), tables.get("transmission", {})
    model = tables.get("model", {})
    network = f"{_name(model)} {model['backbone']}" if "backbone" in model else _name(model)
    noise = f"noise {sent.get('noise_min')} and {sent.get('noise_max')}" if _name(sent) == "gaussian" else "no noise"
    steps = tables.get("algorithm", {}).get("local_steps", 1)
    algorithm, objective, data = (_name(tables.get(section, {})) for section in ("algorithm", "objective", "data"))
    return (
        f"{algorithm} with {objective} on {data}, {network}, {run.get('rounds')} rounds of {steps} local steps on "
        f"batches of {run.get('batch_size')}, {noise}"
    )


def _name(table: dict[str, Any]) -> str:
    return str(table.get("name", "?"))
