"""docs/peers.md says what benchmarks/peers measured, and its engine computes what the reference does."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from doc_tables import rows_below
from problems import played
from torch.nn import functional

from fedmm import ALGORITHMS, InProcess, Terms
from fedmm.engines.batched.clients import Replica
from fedmm.engines.batched.engine import Batched
from fedmm.engines.batched.single import BatchedEngine

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "peers"
PAGE = ROOT / "docs" / "peers.md"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Loads a module of benchmarks/peers by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_tables_are_what_was_measured(peers: Any) -> None:
    table = peers("table")
    results = table.load()
    for head, body in ((table.HEAD, table.rows(results)), (table.SPEED_HEAD, table.speed_rows(results))):
        assert rows_below(head, PAGE) == [[cell.replace("`", "") for cell in row] for row in body]


def small_rows(peers: Any) -> Any:
    random = torch.Generator().manual_seed(0)
    return peers("auc").BinaryRows(torch.randn(120, 28, 28, generator=random), (torch.arange(120) < 24).long())


def small_problem(peers: Any) -> Any:
    return peers("auc").AucProblem(small_rows(peers), 12, 5, 3)


@pytest.mark.parametrize("uploads", ["exact", "int8"])
@pytest.mark.parametrize("name", ["fedavg_gda", "fedmm", "codasca", "extragradient", "fedgda_gt", "fedsgda_m"])
def test_a_stack_computes_what_the_clients_do_one_by_one(peers: Any, name: str, uploads: str) -> None:
    problem = small_problem(peers)
    algorithm = ALGORITHMS[name](lr_min=0.1, lr_max=0.1, local_steps=3)
    terms = Terms(participation=0.5, uploads=uploads)
    replica = Replica(problem.federated, algorithm, 4, terms)
    stack = BatchedEngine(Batched([replica], problem.network))
    one_by_one = InProcess(problem.federated, algorithm, 4, terms)
    for (left, l_record), (right, r_record) in zip(played(stack, 4), played(one_by_one, 4), strict=True):
        # int8 codes may fall to the other side of a rounding step.
        torch.testing.assert_close(left.z, right.z, rtol=1e-4, atol=1e-5 if uploads == "exact" else 1e-3)
        assert (l_record.bytes_up, l_record.bytes_down) == (r_record.bytes_up, r_record.bytes_down)
        assert l_record.metrics["loss"] == pytest.approx(r_record.metrics["loss"], abs=1e-4)


def test_a_client_trains_on_the_rows_of_its_own_and_on_the_formula_of_the_page(peers: Any) -> None:
    problem = small_problem(peers)
    client = problem.federated.clients[1]
    local = client.open_round(0, 4, 2, {})
    assert set(local.chosen.flatten().tolist()) == set(range(10, 20))
    random = torch.Generator().manual_seed(1)
    z = problem.federated.start + 0.05 * torch.randn(problem.layout.size, generator=random)
    at = z.clone().requires_grad_()
    rows, p = local.chosen[0], 0.1
    tensors = {block.name: tensor for block, tensor in problem.layout.tensors(at)}
    s = peers("stacked_lenet").scores({n: t.unsqueeze(0) for n, t in tensors.items()}, problem.train.x[rows][None])[0]
    y, a, b, alpha = problem.train.y[rows].float(), tensors["a"], tensors["b"], tensors["alpha"]
    f = (1 - p) * ((s - a) ** 2 * y).mean() + p * ((s - b) ** 2 * (1 - y)).mean() - p * (1 - p) * alpha**2
    f = f + 2 * (1 + alpha) * (p * s * (1 - y) - (1 - p) * s * y).mean()
    (gradient,) = torch.autograd.grad(f.sum(), at)
    torch.testing.assert_close(local.field(z, 0), gradient * problem.layout.signs(), rtol=1e-4, atol=1e-6)


def test_candidates_are_judged_at_the_end_of_whole_runs_and_runs_count_what_was_sent(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = peers("ours")
    monkeypatch.setattr(ours, "EVALUATED", 2)
    setting = ours.Setting(small_rows(peers), small_rows(peers), clients=12, rounds=4)
    entry = ours.Entry("fedavg_gda", fixed={"local_steps": 2}, grid={"lr_min": (1e-6, 0.3)})
    found = ours.search(entry, setting)
    best, still = (candidate["objective"] for candidate in found)
    assert [candidate["options"]["lr_min"] for candidate in found] == [0.3, 1e-6]
    assert best < still
    problem = ours.AucProblem(setting.train, 12, 5, 1)
    start = float(problem.objective(problem.federated.start.unsqueeze(0), setting.watched))
    assert still == pytest.approx(start, abs=1e-5)
    size = problem.layout.size
    for seed, run in zip((11, 12), ours.run_seeds(entry, found[0]["options"], setting, (11, 12)), strict=True):
        assert (run["seed"], run["rounds"], run["floats"]) == (seed, 4, 4 * 6 * size)
        assert run["floats_so_far"] == [0, 2 * 6 * size, 4 * 6 * size]
        assert [t for t, _ in run["auc"]] == [0, 2, 4]


def test_the_stacked_network_is_lenet(peers: Any) -> None:
    problem, lenet = small_problem(peers), peers("stacked_lenet")
    random = torch.Generator().manual_seed(1)
    z = problem.federated.start + 0.05 * torch.randn(2, problem.layout.size, generator=random)
    x = torch.randn(2, 5, 28, 28, generator=random)

    def plain(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        h = x[1].unsqueeze(1)
        for layer in ("conv1", "conv2"):
            h = functional.conv2d(h, tensors[f"{layer}.weight"][1], tensors[f"{layer}.bias"][1])
            h = functional.max_pool2d(h.relu(), 2)
        h = h.flatten(1)
        for layer in ("fc1", "fc2", "fc3"):
            h = functional.linear(h, tensors[f"{layer}.weight"][1], tensors[f"{layer}.bias"][1]).relu()
        return h.softmax(dim=-1)[:, 1]

    found = []
    for network in (plain, lambda tensors: lenet.scores(tensors, x)[1]):
        at = z.clone().requires_grad_()
        s = network({block.name: tensor for block, tensor in problem.layout.tensors(at)})
        found.append((s.detach(), torch.autograd.grad(s.square().sum(), at)[0]))
    for plainly, stacked in zip(*found, strict=True):
        torch.testing.assert_close(stacked, plainly, rtol=1e-4, atol=1e-6)


def test_the_objective_is_f_at_its_best_a_b_and_alpha(peers: Any) -> None:
    problem, auc = small_problem(peers), peers("auc")
    z, rows, p = problem.federated.start.unsqueeze(0), problem.train, auc.POSITIVE_SHARE
    s = problem.scores(z, rows.x)[0]
    positive = rows.y.float()
    a, b = s[rows.y == 1].mean(), s[rows.y == 0].mean()
    order = (p * s * (1 - positive) - (1 - p) * s * positive).mean()
    alpha = order / (p * (1 - p))
    near = ((1 - p) * (s - a) ** 2 * positive + p * (s - b) ** 2 * (1 - positive)).mean()
    value = near + 2 * (1 + alpha) * order - p * (1 - p) * alpha**2
    assert float(problem.objective(z, rows)) == pytest.approx(float(value), abs=1e-6)


def test_what_its_processes_import_first_brings_back_what_torch_and_numpy_removed(peers: Any, tmp_path: Path) -> None:
    theirs = peers("federated_minimax")
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims" / "sitecustomize.py").write_text(theirs.SHIMS)
    code = (
        "from numpy.lib.type_check import _nan_to_num_dispatcher\nfrom nltk.corpus import wordnet\n"
        "from torch.optim.optimizer import required\nfrom torch.utils.data import DataLoader\n"
        "assert iter(DataLoader([1, 2])).next().tolist() == [1]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=theirs.environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_checkout_it_says_so_and_stops(
    peers: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mnist_auc.py"])
    peers("mnist_auc").main()
    assert capsys.readouterr().out.startswith("Skipped: give a checkout")
