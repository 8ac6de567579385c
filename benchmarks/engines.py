"""Measure the time of a round on each engine as the number of clients grows.

    python benchmarks/engines.py [--quick] [--engine NAME ...] [--clients N ...] [--most-deployed N]

Every engine runs the same rounds (see benchmarks/engine_rows.py) in a separate process. Each measured row replaces its
older version in benchmarks/results/engines.json and records the machine's load when it started; the table and the
picture show all rows in that file. NVFlare and a Flower deployment need one or two processes per client: beyond
``--most-deployed`` clients they are not measured, and their rows say so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from common import processor
from engine_rows import ENGINES, prepared

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "results" / "engines.json", HERE.parent / "docs" / "images" / "engines.png"
CLIENTS = (2, 10, 50, 500)
ROUNDS = {"full": (40, 20, 10, 6), "quick": (6, 5, 4, 3)}
PROCESSES = {"nvflare simulator": 1, "nvflare proof of concept": 2, "flower deployment": 2}
"""Processes per client."""

SECONDS = {"full": 900.0, "quick": 240.0}
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Flower's Ray on loopback too
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
Row = dict[str, Any]


def measured(engine: str, clients: int, rounds: int, seconds: float) -> Row:
    """Return a row, with a ``reason`` instead of times if the engine failed."""
    row: Row = {"engine": engine, "clients": clients, "load": os.getloadavg()[0], "rounds": rounds}
    row["date"] = datetime.now(UTC).date().isoformat()
    command = [sys.executable, str(HERE / "engine_rows.py"), engine, str(clients), str(rounds)]
    try:
        ended = subprocess.run(
            command, env={**os.environ, **QUIET}, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {**row, "reason": f"not ready within {seconds:g} s"}
    if ended.returncode:
        return {**row, "reason": (ended.stderr.strip().splitlines() or ["it failed"])[-1]}
    found = json.loads(ended.stdout.strip().splitlines()[-1])
    low, _, high = statistics.quantiles(found["ms"], n=4)
    return {
        **row,
        "start_up_seconds": found["start_up_seconds"],
        "ms_per_round": statistics.median(found["ms"]),
        "quartiles": [low, high],
    }


def table(rows: list[Row]) -> str:
    """Return a Markdown table of milliseconds per round by engine and number of clients."""
    by_place = {(row["engine"], row["clients"]): row for row in rows}
    lines = [
        "| engine | start-up | " + " | ".join(f"{count} clients" for count in CLIENTS) + " |",
        "| :-- | --: |" + " --: |" * len(CLIENTS),
    ]
    for engine in ENGINES:
        cells = []
        for count in CLIENTS:
            row = by_place.get((engine, count), {})
            cells.append(f"{row['ms_per_round']:,.1f} ms" if "ms_per_round" in row else "not measured")
        start = by_place.get((engine, CLIENTS[0]), {}).get("start_up_seconds")
        lines.append(f"| {engine} | {'-' if start is None else f'{start:.1f} s'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows: list[Row]) -> None:
    """Plot milliseconds per round over the number of clients, on log-log axes, with quartiles as whiskers."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for number, engine in enumerate(ENGINES):
        own = sorted((row for row in rows if row["engine"] == engine and "ms_per_round" in row), key=_clients)
        if own:
            middle = [row["ms_per_round"] for row in own]
            whiskers = [
                [max(0.0, value - row["quartiles"][0]) for value, row in zip(middle, own, strict=True)],
                [max(0.0, row["quartiles"][1] - value) for value, row in zip(middle, own, strict=True)],
            ]
            marker = "osD^vPX*"[number]
            axes.errorbar([_clients(row) for row in own], middle, whiskers, marker=marker, capsize=2, label=engine)
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="ms a round")
    axes.set_xticks(CLIENTS, [str(count) for count in CLIENTS])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(PICTURE, dpi=120)


def _clients(row: Row) -> int:
    return int(row["clients"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="only this one; may be repeated")
    parser.add_argument("--clients", action="append", type=int, choices=CLIENTS, help="only so many; may be repeated")
    parser.add_argument("--most-deployed", type=int, default=2, help="clients with processes of their own, at most")
    given = parser.parse_args()
    scale = "quick" if given.quick else "full"
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {(row["engine"], row["clients"]): row for row in kept}
    for count, rounds in zip(CLIENTS, ROUNDS[scale], strict=True):
        for engine in given.engine or ENGINES:
            if given.clients and count not in given.clients:
                continue
            if engine in PROCESSES and count > given.most_deployed:
                reason = f"not tried: {PROCESSES[engine] * count} processes on one machine"
                row = {"engine": engine, "clients": count, "reason": reason}
                rows.setdefault((engine, count), row)
                continue
            row = measured(engine, count, rounds, SECONDS[scale])
            rows[engine, count] = row
            says = f"{row['ms_per_round']:.1f} ms a round" if "ms_per_round" in row else row["reason"]
            print(f"{engine}, {count} clients: {says} (load {row['load']:.1f})", flush=True)
            save(list(rows.values()))
    save(list(rows.values()))
    print(table(list(rows.values())))
    draw(list(rows.values()))


def save(rows: list[Row]) -> None:
    adaptation = prepared(2, 1)
    about = {
        "command": "python benchmarks/engines.py (each row has its own number of rounds, date and load)",
        "work": "FedMM and DANN on digits, half source and half target clients, 2 local steps of 4 rows",
        "parameters": adaptation.function.layout.size,
        "processor": processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "threads": 1,
    }
    RESULTS.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
