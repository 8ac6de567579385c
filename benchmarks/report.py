"""Write benchmarks/RESULTS.md from the files in benchmarks/results: `python benchmarks/report.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"

DEAREST = 2.1
"""The most that an extragradient step may cost, in plain steps."""

HEAD = """# Results

Milliseconds a round, compared with the plain eager PyTorch loop of `plain_loop.py` in the same run. Written by
`python benchmarks/report.py` from the files in `results/`; each section has the command that made its file.
Public code beside ours, by `python benchmarks/peers/mnist_auc.py`: [docs/peers.md](../docs/peers.md).
"""


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| work | precision | ms a round | eager loop | times as fast | set-up |",
        "| :-- | :-- | --: | --: | --: | --: |",
    ]
    for row in rows:
        eager = "-" if row.get("eager_ms_per_round") is None else f"{row['eager_ms_per_round']:.1f}"
        ratio = "-" if row.get("ratio") is None else f"{row['ratio']:.1f}"
        setup = f"{row['setup_seconds']:.1f} s" if row.get("setup_seconds") else "-"
        threads = f", {row['threads']} thread(s)" if "threads" in row else ""
        name, precision = f"{row['work']}{threads}", row.get("precision", "fp32")
        lines.append(f"| {name} | {precision} | {row['ms_per_round']:.2f} | {eager} | {ratio} | {setup} |")
    return "\n".join(lines) + "\n"


def reached(rows: list[dict[str, Any]]) -> str:
    """Return the section on the batched engine's goals on an H200 and whether they were reached."""
    paper, mobile = "MNIST-M network, {}, 2 clients x 20 steps, batch 64", "MobileNetV2 at 224, DANN, BatchNorm {}"
    stacked = ", 8 runs stacked (per run and round)"

    def of(work: str) -> dict[str, Any]:
        return next(row for row in rows if row["work"].startswith(work) and row["precision"] == "tf32")

    one, eight = of(paper.format("DANN")), of(paper.format("DANN") + stacked)
    aims = [
        ("MNIST-M network, DANN, one run", "ms a round", one["ms_per_round"], "at most", 9.0),
        ("the same", "times the eager loop", one["ratio"], "at least", 6.0),
        ("the same, 8 runs stacked", "ms per run and round", eight["ms_per_round"], "at most", 4.5),
        *(
            (f"the same with {name}", "times the eager loop", of(paper.format(name))["ratio"], "at least", 5.0)
            for name in ("CDAN", "MDD")
        ),
        *(
            (mobile.format(policy), "times the eager loop", of(mobile.format(policy))["ratio"], "at least", 3.0)
            for policy in ("frozen", "averaged")
        ),
        ("set-up before the first round", "s", one["setup_seconds"], "at most", 15.0),
    ]
    lines = [
        "\n## Goals on an H200, in tf32\n",
        "| work | | to reach | measured | |",
        "| :-- | :-- | :-- | --: | :-- |",
    ]
    for work, unit, value, way, aim in aims:
        well = value <= aim if way == "at most" else value >= aim
        verdict = "reached" if well else f"missed by {abs(value / aim - 1):.1%}"
        lines.append(f"| {work} | {unit} | {way} {aim:g} | {value:.2f} | {verdict} |")
    return "\n".join(lines) + "\n"


def parity(rows: list[dict[str, Any]]) -> str:
    lines = ["| work | algorithm | fp32 | tf32 | bf16 | in-process twice |", "| :-- | :-- | --: | --: | --: | --: |"]
    for row in rows:
        numbers = " | ".join(f"{row[name]:.1e}" for name in ("fp32", "tf32", "bf16", "in_process again"))
        lines.append(f"| {row['work']} | {row['algorithm']} | {numbers} |")
    return "\n".join(lines) + "\n"


def costs(found: dict[str, Any]) -> str:
    """Return the section on the algorithms' cost per round relative to FedAvgGDA's."""
    about, rows = found["about"], found["rows"]
    by = {(row["algorithm"], row["engine"]): row for row in rows}

    def cell(row: dict[str, Any]) -> str:
        return f"{row['times']:.2f} ({row['least']:.2f} to {row['most']:.2f})"

    lines = [
        "\n## What a round of an algorithm costs\n",
        "Times a round of `fedavg_gda` with as many local steps, in the processor's seconds; the median of five runs "
        f"and their range. {about['processor']}, {about['cores']} cores with a load of "
        f"{about['load_average_at_start']:.1f}, torch {about['torch']}, {about['date']}: `{about['command']}`\n",
        "| algorithm | in-process | batched |",
        "| :-- | --: | --: |",
    ]
    for name in dict.fromkeys(row["algorithm"] for row in rows if row["engine"] == "in_process"):
        lines.append(f"| `{name}` | {cell(by[name, 'in_process'])} | {cell(by[name, 'batched'])} |")
    stacked = next(row for row in rows if row["engine"] == "stacked")
    dearest = max(by["extragradient", engine]["times"] for engine in ("in_process", "batched"))
    verdict = "reached" if dearest <= DEAREST else f"missed by {dearest / DEAREST - 1:.1%}"
    lines += [
        f"\n`extragradient` was to cost at most {DEAREST} times a plain step: {verdict}. {stacked['algorithm']} as one "
        f"program take {cell(stacked)} times as long as the four one after the other.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parts = [HEAD]
    titles = {
        "batched_cuda": "The batched engine on a GPU",
        "batched_cpu": "The batched engine on a CPU",
        "in_process": "The in-process engine",
    }
    for name, title in titles.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            rows = json.loads(path.read_text())
            about = f"{rows[0]['hardware']}, torch {rows[0]['versions']['torch']}, {rows[0]['date']}: "
            parts.append(f"\n## {title}\n\n{about}`{rows[0]['command']}`\n\n{table(rows)}")
        if name == "batched_cuda":
            parts.append(reached(rows))
    path = RESULTS / "algorithms.json"
    if path.exists():
        parts.append(costs(json.loads(path.read_text())))
    path = RESULTS / "gpu_parity.json"
    if path.exists():
        rows = json.loads(path.read_text())
        parts.append(
            f"\n## How far the batched engine is from the reference on a GPU\n\n{rows[0]['hardware']}, after "
            f"{rows[0]['rounds']} rounds, relative to the distance from the start: "
            f"`python benchmarks/gpu_parity.py`\n\n{parity(rows)}"
        )
    (HERE / "RESULTS.md").write_text("".join(parts))


if __name__ == "__main__":
    main()
