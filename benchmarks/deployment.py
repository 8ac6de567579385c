"""Where the seconds of a deployed round go, with a resident worker at each site and without.

    python benchmarks/deployment.py [--rounds 5] [--out benchmarks/results/deployment.json]

Two sites, a SuperLink with TLS and node authentication, FedMM on scanned digits, all on this machine. Medians over the
rounds after the first, from the server's log. The load average says how quiet the machine was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import tempfile
from pathlib import Path

from fedmm.deploy.demo import RUN, demo
from fedmm.deploy.layout import Federation
from fedmm.deploy.site_config import WORKERS

_ROUND = re.compile(
    r"round \d+: (?P<round>[\d.]+) s = Flower (?P<flower>[\d.]+) \(its process at the site (?P<process>[\d.]+)\) "
    r"\+ start-up (?P<start_up>[\d.]+) \+ training (?P<training>[\d.]+) \+ transfer (?P<transfer>[\d.]+)"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/deployment.json"))
    options = parser.parse_args()
    rows = []
    for worker in WORKERS:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "federation"
            alike = demo(out, options.rounds, worker=worker, insecure=False, say=print)
            log = (Federation(out).run(RUN) / "server.log").read_text(encoding="utf-8")
        found = [match.groupdict() for match in _ROUND.finditer(log)][1:]
        medians = {key: round(statistics.median(float(each[key]) for each in found), 2) for key in found[0]}
        rows.append({"worker": worker, "bit_identical": alike, "rounds": len(found), **medians})
        print(rows[-1])
    about = {"cores": os.cpu_count(), "machine": platform.machine(), "load_average": os.getloadavg()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
