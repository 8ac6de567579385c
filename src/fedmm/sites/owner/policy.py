"""What a site's owner lets an experiment do: judged before any part of it is built or imported."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedmm.algorithms import ALGORITHMS
from fedmm.config.dataclass_io import as_table, choose
from fedmm.config.schema import Experiment
from fedmm.core.algorithm import Algorithm, Coefficients, steps_by_client
from fedmm.core.errors import FedmmError
from fedmm.core.federation import Terms
from fedmm.core.files import parse_toml
from fedmm.core.imports import is_covered
from fedmm.core.mechanisms import GaussianUpdate
from fedmm.models.pretrained import TIMM, TORCHVISION
from fedmm.remote.packed import CONFIRM, INTRODUCE, OPEN, TRAIN
from fedmm.sites.config import PolicySection
from fedmm.sites.experiments import deployed_experiment, experiment_text, named_paths
from fedmm.sites.owner.ledger import Ledger, NotAllowed, permit
from fedmm.training.clients import batch_split
from fedmm.training.guard import Guard, calmer
from fedmm.training.privacy import gaussian_epsilon, require_no_counts

LONGEST = 1 << 18
"""Longest experiment or plan that a site reads, in characters."""

_RUN = re.compile(r"[^\x00-\x1f\x7f]{1,100}")
_WORD = re.compile(r"[A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Asked:
    """An experiment as the server sent it. digest: of its canonical text, with all defaults."""

    experiment: Experiment
    text: str
    digest: str


def read_asked(text: object) -> Asked:
    """Read and check the server's experiment; nothing in it is loaded, built or imported."""
    permit(isinstance(text, str), "the server did not send an experiment")
    permit(len(str(text)) <= LONGEST, f"the server's experiment has over {LONGEST} characters")
    try:
        experiment = deployed_experiment(parse_toml(str(text), "the server's experiment"))
        canonical = experiment_text(experiment)
    except FedmmError as problem:
        raise NotAllowed(str(problem)) from problem
    return Asked(experiment, canonical, hashlib.sha256(canonical.encode()).hexdigest())


@dataclass(frozen=True)
class RunPlan:
    """What the server sends with the experiment. alpha: the site's weight. input_mean: of all sites' inputs.

    clients, listed: who takes part, in order of names and as listed. odds: of source to target in all batches.
    encoding: how the columns of tables become numbers, as JSON. class_shares: of all sites' labelled rows, if the
    objective needs them.
    """

    algorithm: Algorithm
    alpha: float
    input_mean: float
    clients: tuple[str, ...]
    listed: tuple[str, ...]
    odds: float | None
    encoding: str = ""
    class_shares: tuple[float, ...] | None = None


def read_plan(text: object, experiment: Experiment, site: str) -> RunPlan:
    """Read the server's plan; its algorithm must be the experiment's, or one that the guard derives from it."""
    permit(isinstance(text, str) and len(text) <= LONGEST, "the server sent no plan for this site")
    try:
        table = json.loads(str(text))
    except (ValueError, RecursionError):
        table = None
    permit(isinstance(table, dict), "the server's plan is not a JSON table")
    numbers = [table.get("alpha"), table.get("input_mean"), table.get("odds") or 0.0]
    permit(all(map(_is_finite, numbers)), "the alpha, input_mean and odds of the server's plan must be finite numbers")
    names = [table.get("clients"), table.get("listed")]
    right = all(isinstance(listed, list) and all(isinstance(name, str) for name in listed) for listed in names)
    permit(right and site in names[1], f"the server's plan must list its sites, including {site!r}")
    algorithm = (
        choose(ALGORITHMS, table["algorithm"], "algorithm") if isinstance(table.get("algorithm"), dict) else None
    )
    allowed = map(as_table, _algorithms(experiment))
    if algorithm is None or not any(_is_close(as_table(algorithm), table) for table in allowed):
        raise NotAllowed("the algorithm of the server's plan is neither the experiment's nor one that its guard allows")
    encoding = table.get("encoding", "")
    permit(isinstance(encoding, str), "the encoding of the server's plan must be text")
    alpha, mean = float(numbers[0]), float(numbers[1])
    shares = table.get("class_shares")
    told = isinstance(shares, list) and all(_is_finite(share) and 0 <= share <= 1 for share in shares)
    permit(
        told if experiment.objective.needs_class_shares else shares is None,
        f"the class_shares of the server's plan must be numbers between 0 and 1 if {experiment.objective.name} needs "
        "them, and absent if not",
    )
    odds = None if shares is None else tuple(map(float, shares))
    return RunPlan(algorithm, alpha, mean, tuple(names[0]), tuple(names[1]), table.get("odds"), encoding, odds)


def _is_close(one: Any, other: Any) -> bool:
    """Return whether plain values agree up to the rounding of numbers on another machine."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_close(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _algorithms(experiment: Experiment) -> Iterator[Algorithm]:
    """Yield the experiment's algorithm, and the same with the reduced steps after each rollback of its guard."""
    guard: Guard = experiment.guard
    yield experiment.algorithm
    for times in range(1, (guard.most if guard.policy == "rollback" else 0) + 1):
        yield calmer(experiment.algorithm, guard.calm**times, guard.stiffen**times)


def require_allowed(policy: PolicySection, kind: str, experiment: Experiment, site: str) -> None:
    """Raise NotAllowed for an experiment by its text alone, whatever rows the site has."""
    _require_imports(policy, experiment)
    _require_paths(policy, experiment)
    _require_noise(policy, kind, experiment)
    steps = experiment.algorithm.steps
    if isinstance(steps, Mapping):
        if site not in steps:
            return
        steps = steps[site]
    require_steps(policy, experiment.algorithm.steps_told(steps if isinstance(steps, int) else max(steps)))


def require_run_name(name: object) -> None:
    """Raise NotAllowed for a run name that is unfit for a folder or a line of a log."""
    permit(
        isinstance(name, str) and _RUN.fullmatch(name) is not None and not name.startswith("."),
        "the server must name the run in 1 to 100 printable characters, the first not a dot",
    )


def _require_imports(policy: PolicySection, experiment: Experiment) -> None:
    backbone = getattr(experiment.model, "backbone", "")
    if not backbone or backbone.partition(":")[0] in (TIMM, TORCHVISION):
        return
    permit(
        is_covered(backbone, policy.allow_imports),
        f"backbone {backbone!r:.200} would import a module and run its code, which is not allowed at this site; its "
        "owner can list it in policy.allow_imports",
    )
    for option, value in getattr(experiment.model, "options", {}).items():
        permit(
            not isinstance(value, str) or _WORD.fullmatch(value) is not None or value in policy.allow_paths,
            f"model.options.{option} may name a file, and this site's policy.allow_paths does not list it",
        )


def _require_paths(policy: PolicySection, experiment: Experiment) -> None:
    for key, path in named_paths(experiment).items():
        permit(
            path in policy.allow_paths,
            f"{key} names a file or folder, and this site's policy.allow_paths does not list it",
        )


def _require_noise(policy: PolicySection, kind: str, experiment: Experiment) -> None:
    private = experiment.terms.transmission.private
    permit(
        not private or experiment.model.centre != "train_mean",
        "centre must be 'none' or 'image_mean' if updates carry noise: the mean of the clients' inputs has none",
    )
    if private and experiment.objective.needs_class_shares:
        try:
            require_no_counts(experiment.objective)
        except FedmmError as refusal:
            raise NotAllowed(str(refusal)) from refusal
    if policy.max_epsilon < math.inf:
        permit(
            private and kind in (INTRODUCE, TRAIN, CONFIRM, OPEN),
            f"this site's policy.max_epsilon is {policy.max_epsilon:g}, but the answer would carry no noise, so its "
            "epsilon would be infinite",
        )


def require_steps(policy: PolicySection, steps: int) -> None:
    """Raise NotAllowed for updates that combine too few local steps."""
    permit(
        steps >= policy.min_local_steps,
        f"an update of the site would hold as few as {steps} local steps; its policy.min_local_steps is "
        f"{policy.min_local_steps}",
    )


def require_steps_kept(policy: PolicySection, c: Coefficients) -> None:
    """Raise NotAllowed for steps that forget earlier ones: each leaves 1 - lr (penalty + smoothing) of those before."""
    forgotten = c.lr * sum(c[pull] for pull in ("penalty", "smoothing") if pull in c)
    permit(
        float(forgotten.max()) <= 1 / policy.min_local_steps,
        "learning rate times penalties is so large that the last local step alone would be sent; this site's "
        f"policy.min_local_steps is {policy.min_local_steps}, which allows at most 1/{policy.min_local_steps}",
    )


def count_own_steps(plan: RunPlan, site: str) -> int:
    """Return the least number of the site's local steps in an update."""
    return plan.algorithm.steps_told(steps_by_client(plan.algorithm.steps, plan.listed)[site])


def require_rows(policy: PolicySection, batch_size: int, source: int, target: int) -> None:
    """Raise NotAllowed if a domain has too few rows, in all or in a batch. source, target: how many the site has."""
    for domain, held in (("source", source), ("target", target)):
        permit(
            not held or held >= policy.min_rows,
            f"the site holds fewer {domain} rows than its policy.min_rows, {policy.min_rows}",
        )
    for domain, rows in zip(("source", "target"), batch_split(batch_size, source, target), strict=True):
        permit(
            not rows or rows >= policy.min_batch_size,
            f"a batch would hold fewer {domain} rows than this site's policy.min_batch_size, {policy.min_batch_size}",
        )


def require_counts(policy: PolicySection, counts: Sequence[int]) -> None:
    """Raise NotAllowed for reporting class counts if a class has some rows but fewer than min_rows."""
    permit(
        all(not held or held >= policy.min_rows for held in counts),
        f"the site holds fewer rows of a class than its policy.min_rows, {policy.min_rows}, and does not report "
        "how many; objective.positive_share (auc) or class_weights = 'none' (source_only) need no counts",
    )


def precision_of(terms: Terms, groups: tuple[bool, bool], clients: int) -> float:
    """Return what an update reveals: the sum of 1 / multiplier^2 over omega and psi; infinite without noise.

    groups: which of the two exist. clients: in a round; if the server is trusted they share the noise, but a site
    relies on its own part alone.
    """
    noise = terms.transmission
    if not isinstance(noise, GaussianUpdate):
        return math.inf
    parts = max(clients - 1, 1) if noise.trust == "server" else 1
    both = zip((noise.noise_min, noise.noise_max), groups, strict=True)
    return sum(parts * (2 / multiplier) ** 2 for multiplier, holds in both if holds)


def epsilon_of(precision: float, delta: float) -> float:
    """Return the epsilon of all updates with this total precision."""
    if not precision:
        return 0.0
    return gaussian_epsilon(1 / math.sqrt(precision), delta) if precision < math.inf else math.inf


def require_budget(policy: PolicySection, ledger: Ledger, rounds: int = 0, precision: float = 0.0) -> None:
    """Raise NotAllowed if the policy's budget has no room for another question with these rounds and this precision."""
    permit(
        ledger.questions < policy.max_questions,
        f"this site has answered {ledger.questions} questions; its policy.max_questions is {policy.max_questions}",
    )
    permit(
        ledger.rounds + rounds <= policy.max_rounds,
        f"this site has answered {ledger.rounds} rounds; its policy.max_rounds is {policy.max_rounds}",
    )
    if policy.max_epsilon < math.inf and precision:
        epsilon = epsilon_of(ledger.precision + precision, policy.delta)
        permit(
            epsilon <= policy.max_epsilon,
            f"with this round the site would have spent epsilon {epsilon:.4g}; its policy.max_epsilon is "
            f"{policy.max_epsilon:g}",
        )


def require_room(policy: PolicySection, ledger: Ledger, rounds: object, questions: object) -> None:
    """Raise NotAllowed for a tuning that needs more rounds or questions than are left; None if it is not a tuning."""
    if rounds is None and questions is None:
        return
    asked = [number if isinstance(number, int) and number >= 0 else math.inf for number in (rounds, questions)]
    permit(
        not policy.require_approval,
        "a tuning runs many experiments, and this site's owner approves every single one (policy.require_approval); "
        "have one experiment approved and run it without --tune",
    )
    for what, number, spent, most in (
        ("rounds", asked[0], ledger.rounds, policy.max_rounds),
        ("questions", asked[1], ledger.questions, policy.max_questions),
    ):
        permit(
            spent + number <= most,
            f"the tuning takes {number} {what} of this site, which has {max(0, most - spent)} left of its "
            f"policy.max_{what}, {most}",
        )


def policy_table(policy: PolicySection) -> dict[str, Any]:
    """Return the policy as plain values, with None for an unlimited epsilon."""
    table = {field.name: getattr(policy, field.name) for field in fields(policy)}
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}
    return {name: None if value == math.inf else value for name, value in listed.items()}
