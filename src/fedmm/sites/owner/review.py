"""What a site's owner reads and decides: the audit log, the experiments asked for, their approval."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import parse_toml
from fedmm.remote.packed import one_line
from fedmm.sites.config import PolicySection, SiteConfig
from fedmm.sites.owner import ledger as events
from fedmm.sites.owner.audit import AuditLog, Entry, read_chain
from fedmm.sites.owner.ledger import Ledger

_SHORT, _LONGEST = 16, 4000


def verify(config: SiteConfig, show: Callable[[Entry], None], expect: str = "") -> list[str]:
    """Check a site's log and return its totals; raise BrokenChain, after the valid entries, if it is broken.

    show: called with every valid entry. expect: the hash of an entry that must exist, since it was noted elsewhere.
    """
    ledger, hashes = Ledger(), set[str]()
    path, policy = config.audit, config.policy
    require(path.is_file(), f"there is no audit log {path}: the site was never asked anything")

    def take(entry: Entry) -> None:
        ledger.take(entry)
        hashes.add(entry["hash"])
        show(entry)

    chain = read_chain(path, take)
    if expect and expect not in hashes:
        raise FedmmError(f"the audit log {path} has no entry {one_line(expect, 80)}: entries were removed at its end")
    lines = [
        f"answered {ledger.questions} of {policy.max_questions} questions and {ledger.rounds} of {policy.max_rounds} "
        f"rounds{_spent(ledger, policy)}; refused {'at least ' if ledger.refused else ''}{ledger.refused}",
        f"{chain.entries} entries, every hash follows from the one before; head {chain.head}",
    ]
    if chain.fragment:
        lines.append(f"the last {len(chain.fragment)} bytes are not a whole line: a crash, or an entry being written")
    return lines


def _spent(ledger: Ledger, policy: PolicySection) -> str:
    if not ledger.precision:
        return ""
    if ledger.precision == math.inf:
        return "; what left without noise has no finite epsilon"
    from fedmm.sites.owner.policy import epsilon_of  # noqa: PLC0415 - torch

    return f"; epsilon {epsilon_of(ledger.precision, policy.delta):.4g} of {policy.max_epsilon:g}"


def describe_entry(entry: Entry, *, whole: bool = False) -> str:
    """Return an entry as one line; whole: as JSON, as it was written."""
    if whole:
        return json.dumps(entry)
    return one_line(f"{entry['number']} {entry['time']} {entry['event']}: {_words(entry)}", _LONGEST)


def _words(entry: Entry) -> str:
    event = entry["event"]
    short = str(entry.get("experiment", ""))[:_SHORT]
    if event == events.QUESTION:
        when = f", round {entry['round']} of session {entry['session']}" if entry.get("round") is not None else ""
        return f"{entry['kind']} for run {entry['run']}, experiment {short}{when}; came {_arrays(entry['came'])}"
    if event == events.ANSWER:
        values = ", ".join(f"{name} = {value!r}" for name, value in entry["values"].items())
        again = ", as before" if entry["kind"] == "train" and entry["leaves"] and not entry["rounds"] else ""
        return f"{entry['kind']} for run {entry['run']}{again}; leaves {_arrays(entry['leaves'])}; {values}"
    if event == events.REFUSAL:
        what = f"{entry['kind']} for run {entry['run']}" if "run" in entry else entry["kind"] or "any"
        times = entry.get("times", 1)
        return f"{what}: {entry['sentence']}{f' ({times} times this day)' if times > 1 else ''}"
    if event == events.POLICY:
        return ", ".join(f"{name} = {value!r}" for name, value in entry["policy"].items())
    if event == events.EXPERIMENT:
        return f"{short}, {len(entry['text'])} characters of TOML (--json shows them)"
    if event == events.PLAN:
        return f"{entry['plan'][:_SHORT]}, {one_line(entry['text'], 200)}"
    return ", ".join(f"{name} {entry[name]}" for name in ("experiment", "bytes", "sha256") if name in entry)


def _arrays(arrays: list[dict[str, object]]) -> str:
    described = [f"{array['name']} {array['shape']} {array['dtype']} {array['bytes']} bytes" for array in arrays]
    return "; ".join(described) or "no arrays"


_HASH = re.compile(r"[0-9a-f]{8,64}")


def list_experiments(config: SiteConfig) -> list[str]:
    """Return a line for each experiment asked for or approved: hash, whether it is approved, runs and a summary."""
    ledger = Ledger()
    read_chain(config.audit, ledger.take)
    lines = []
    for digest, text in ledger.experiments.items():
        stands = "approved" if digest in ledger.approved else "not approved"
        runs = ", ".join(ledger.asked.get(digest, [])) or "none yet"
        lines.append(one_line(f"{digest[:16]} {stands}; runs: {runs}; {summary(text)}", 1000))
    return lines


def approve_experiment(config: SiteConfig, what: str) -> str:
    """Approve an experiment, given by the beginning of its hash or by its file; return its whole hash."""
    ledger = Ledger()
    log = AuditLog(config.audit, ledger.take)
    by_hash = _HASH.fullmatch(what) is not None
    digest, text = ("", "") if by_hash else _read(Path(what))
    with log.alone():
        if by_hash:
            found = [digest for digest in ledger.experiments if digest.startswith(what)]
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
    """Summarise an experiment in a line: algorithm, data, network, rounds, batch and noise."""
    tables = parse_toml(text, "the experiment")
    run, sent = tables.get("run", {}), tables.get("transmission", {})
    model = tables.get("model", {})
    network = f"{_name(model)} {model['backbone']}" if "backbone" in model else _name(model)
    noise = f"noise {sent.get('noise_min')} and {sent.get('noise_max')}" if _name(sent) == "gaussian" else "no noise"
    rule = tables.get("algorithm", {})
    steps = f"about {rule['mean_steps']}" if "mean_steps" in rule else rule.get("local_steps", 1)
    algorithm, objective, data = (_name(tables.get(section, {})) for section in ("algorithm", "objective", "data"))
    return (
        f"{algorithm} with {objective} on {data}, {network}, {run.get('rounds')} rounds of {steps} local steps on "
        f"batches of {run.get('batch_size')}, {noise}"
    )


def _name(table: dict[str, Any]) -> str:
    return str(table.get("name", "?"))
