"""Sites that hold tables, in one process: their files, an experiment for all, and a run through Flower's records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from deploy.grids import SitesGrid

from fedmm.config.schema import Experiment
from fedmm.config.toml import write_toml
from fedmm.deploy.layout import RunRequest
from fedmm.deploy.server import keep_every_round, serve
from fedmm.sites.experiments import deployed_experiment, experiment_text

FEATURES = ("age", "crp", "ward", "sex")
CLASSES = ("healthy", "ill")
NAMES = ("north", "south", "west")
"""west is the target and has no labels."""


def table(seed: int, rows: int, *, labelled: bool = True) -> pandas.DataFrame:
    """Return a table of integers, floats, numbers with missing values, and words."""
    random = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "age": random.integers(20, 90, rows),
            "crp": random.lognormal(1.0, 1.5, rows) + seed,
            "ward": np.where(random.random(rows) < 0.2, np.nan, random.integers(1, 9, rows)),
            "sex": random.choice(["f", "m"], rows),
            "comment": [f"secret {seed} {row}" for row in range(rows)],
        }
    )
    return frame.assign(diagnosis=random.choice(CLASSES, rows)) if labelled else frame


def tables(**rows: int) -> dict[str, pandas.DataFrame]:
    """Return a table for each site. rows: by site, instead of the default sizes."""
    sizes = {"north": 60, "south": 45, "west": 50, **rows}
    return {name: table(place + 1, sizes[name], labelled=name != "west") for place, name in enumerate(NAMES)}


def write_site(folder: Path, name: str, frame: pandas.DataFrame, *, ending: str = ".csv", **more: Any) -> Path:
    """Write a site's table and its site file. more: further keys, of ``[site]`` if it has them, else of ``[data]``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{ending}"
    writers: dict[str, Any] = {".csv": frame.to_csv, ".parquet": frame.to_parquet, ".xlsx": frame.to_excel}
    writers[ending](path, index=False)
    own = {key: more.pop(key) for key in ("min_rows", "descriptions") if key in more}
    labelled = {"domain": "source", "label": "diagnosis"} if "diagnosis" in frame.columns else {"domain": "target"}
    data = {"kind": "table", "path": str(path), "features": list(FEATURES), **labelled, **more}
    site = {"name": name, "state": f"state/{name}", **own}
    sections = {"site": site, "data": data, "superlink": {"address": "127.0.0.1:1", "insecure": True}}
    file = folder / f"{name}.toml"
    file.write_text(write_toml(sections), encoding="utf-8")
    return file


def agreed(**data: Any) -> Experiment:
    """Return an experiment in which all sites can take part."""
    return keep_every_round(
        deployed_experiment(
            {
                "run": {"rounds": 2, "batch_size": 8, "threads": 1, **data.pop("run", {})},
                "data": {
                    "name": "sites", "sites": list(NAMES), "classes": list(CLASSES), "features": list(FEATURES),
                    "categories": {"sex": ["f", "m"]}, "label": "diagnosis", **data.pop("data", {}),
                },
                "model": {"name": "mlp", "hidden": [6], "adversary_hidden": [4], **data.pop("model", {})},
                "algorithm": {"name": "fedmm", "local_steps": 2},
                **data,
            }
        )
    )  # fmt: skip


def run(folder: Path, files: Mapping[str, Path], each: Experiment, on_reply: Any = None, **more: Any) -> Path:
    """Run an experiment over sites; return the run's folder."""
    text = experiment_text(each)
    grid = SitesGrid(files.values())
    if on_reply is not None:
        grid.on_reply = on_reply
    serve(grid, RunRequest(folder, "one", text, **{"patience": 20.0, "enrol_seconds": 5.0, **more}))
    return folder / "runs" / "one"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
