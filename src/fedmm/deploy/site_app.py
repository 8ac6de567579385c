"""The ClientApp that Flower loads at a site: it hands messages to the resident worker, or works by itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmm.core.errors import require
from fedmm.deploy.relay import NoWorker, alone, ask
from fedmm.deploy.site_config import SiteConfig, read_site
from fedmm.engines.flower.client import Handler, client_app
from fedmm.engines.packed import Packed, contents

SITE, PARTITION = "site", "partition-id"
"""The keys of a node's configuration: the site's file; or, in Flower's simulation, which of the sites it is."""


def _handler(node: Mapping[str, Any], run: Mapping[str, Any]) -> Handler:
    config = _config(node, run)

    def handled(kind: str, question: Packed) -> Packed:
        told = {key: value for key, value in run.items() if key in ("run", "experiment")}
        question = question._replace(about={**question.about, **told})  # a message is of the run that was submitted
        _log(config, f"{kind}: came {contents(question.arrays)}")
        answer = _answer(config, kind, question)
        _log(config, f"{kind}: leaves {contents(answer.arrays)}; {_leaving(answer)}")
        return answer

    return handled


def _config(node: Mapping[str, Any], run: Mapping[str, Any]) -> SiteConfig:
    if SITE in node:
        return read_site(Path(str(node[SITE])))
    require(PARTITION in node, f"the SuperNode was started without --node-config '{SITE}=\"FILE.toml\"'")
    from fedmm.deploy.simulated import simulated_site  # noqa: PLC0415 - torch is not loaded before it is needed

    return simulated_site(int(node[PARTITION]), str(run["experiment"]))


def _answer(config: SiteConfig, kind: str, question: Packed) -> Packed:
    if config.site.worker == "resident":
        try:
            return ask(config.state, kind, question)
        except NoWorker as problem:
            _log(config, f"the resident worker does not answer ({problem}); this process works by itself")
    from fedmm.deploy.site_work import SiteWork  # noqa: PLC0415 - torch is not loaded before it is needed

    with alone(config.state):
        return SiteWork(config, say=lambda line: _log(config, line))(kind, question)


def _leaving(answer: Packed) -> str:
    values = ", ".join(f"{name} = {value!r:.300}" for name, value in {**answer.about, **answer.metrics}.items())
    return f"values {values}"


def _log(config: SiteConfig, line: str) -> None:
    sys.stderr.write(f"fedmm site {config.site.name}: {line}\n")
    sys.stderr.flush()


app = client_app(_handler)
