"""The candidates of a tuning: the experiment as given, a plain baseline, and a grid around the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from itertools import product
from typing import Any

from fedmm.algorithms import ALGORITHMS
from fedmm.config.schema import SOURCE_ONLY, Experiment, experiment
from fedmm.config.sweep_grid import SWEEP, grid, grid_axes, options_for
from fedmm.core.errors import require, unknown
from fedmm.data.partition import TargetSupervised
from fedmm.objectives import AUC, OBJECTIVES, SourceOnly

TUNE = "tune"
AS_GIVEN = "as given"
ALWAYS = (SOURCE_ONLY, AS_GIVEN)
"""With a target, the candidates that reach the last rung whatever they measure."""
PLAIN = "federated averaging"
"""The plainest candidate without a target: cross entropy, trained by FedAvg."""
WEIGHTED = "federated averaging, balanced classes"
"""The same with balanced class weights, for a rare class."""
_ALGORITHMS = ("fedmm_restrained", "fedmm_smoothed", "fedmm", "fedmm_ascent", "fedavg_gda")
_PENALTIES, _LR_FACTORS, _NUS = (0.5, 1.0, 2.0), (0.5, 1.0, 2.0), (0.3, 1.0)
_RATES, _POWERS = (0.3, 1.0, 3.0), (0.1, 1.0, 5.0)
_BASELINE = "fedavg_gda"
LABELLED_ALGORITHMS = {
    "accuracy": ("fedavg_gda", "scaffold_gda", "fedmm"),
    "auc": ("fedavg_gda", "coda_plus", "codasca", "fedmm", "fedmm_smoothed"),
    "worst_site": ("fedavg_gda", "afl", "drfa", "q_ffl", "fedmm_agnostic"),
}
"""By metric, the algorithms to try without a target."""
_FOR_AUC = ("coda_plus", "codasca")
"""Those of them made for the objective ``auc``, and tried only with it unless the file names them."""
_WEIGHTED_BY = ("fedavg_gda", "fedmm")
"""Those of them that are also tried with balanced class weights, for the metric ``auc``."""
_TUNABLE = ("algorithm", "objective", "model", "run")
_NOT_TUNABLE = {
    "seed": "--seeds N repeats the finalists",
    "rounds": "the rungs set it",
    "label": "candidates are named by what they change",
}


def derive_candidates(tables: Mapping[str, Any], objectives: Sequence[str] = ()) -> dict[str, Experiment]:
    """Return source only, the experiment as given, and the grid, by label; the smallest changes come first.

    The grid is that of the ``[tune]`` table, written like ``[sweep]``. Without one, it varies algorithms, penalties,
    the adversary's learning rate and the trade-off nu, with each of ``objectives`` or else the file's own.
    """
    plain = _without_grid(tables, objectives)
    given = experiment(plain)
    _require_tunable(given)
    _require_adapting([given])
    grid = _build_own_grid(tables) if TUNE in tables else _default_grid(plain, given, objectives)
    _require_adapting(grid)
    require(
        not any(candidate.source_only for candidate in grid),
        f'[{TUNE}] need not vary {SourceOnly.name}, which is always a candidate; list in "objective.name" only what '
        "adapts to the target",
    )
    source_only = _build_baseline(plain)
    candidates = {SOURCE_ONLY: source_only, **({} if given.source_only else {AS_GIVEN: given})}
    return _with_labels(given, candidates, grid)


def _without_grid(tables: Mapping[str, Any], objectives: Sequence[str]) -> dict[str, Any]:
    """Return the tables of the experiment as given, without ``[tune]``."""
    plain = {section: table for section, table in tables.items() if section != TUNE}
    require(SWEEP not in plain, "a file with a [sweep] table is for `fedmm sweep`; call it [tune] to tune over it")
    require(
        TUNE not in tables or not objectives,
        "--objectives is for files without a [tune] table; list objective.name in [tune]",
    )
    return plain


def _build_baseline(plain: Mapping[str, Any]) -> Experiment:
    """Return the experiment with cross entropy on source rows and plain federated averaging."""
    return experiment(
        {
            **plain,
            "objective": options_for(plain, "objective", SourceOnly.name, OBJECTIVES),
            "algorithm": options_for(plain, "algorithm", _BASELINE, ALGORITHMS),
        }
    )


def _with_labels(given: Experiment, first: dict[str, Experiment], grid: Sequence[Experiment]) -> dict[str, Experiment]:
    """Return ``first`` and the grid by label, each candidate once, those with the fewest changes to ``given`` first."""
    candidates = dict(first)
    seen = {repr(_clear_label(candidate)) for candidate in candidates.values()}
    for candidate in sorted(grid, key=lambda candidate: len(_changes(candidate, given))):
        if repr(_clear_label(candidate)) not in seen:
            seen.add(repr(_clear_label(candidate)))
            candidates[_free_label(_label(candidate, given), candidates)] = candidate
    return {
        label: replace(candidate, run=replace(candidate.run, label=given.run.label))
        for label, candidate in candidates.items()
    }


def derive_labelled_candidates(
    tables: Mapping[str, Any], metric: str, objectives: Sequence[str] = ()
) -> dict[str, Experiment]:
    """Return the candidates without a target: the experiment as given, plain federated averaging, and the grid.

    Without a ``[tune]`` table, the grid varies algorithms that fit the metric, learning rates and, for algorithms that
    have them, penalties, step sizes of the sites' weights, and powers q. metric: one of ``METRICS``.
    """
    plain = _without_grid(tables, objectives)
    given = experiment(plain)
    _require_no_noise(given)
    grid = _build_own_grid(tables) if TUNE in tables else _build_labelled_grid(plain, given, metric, objectives)
    for candidate in (given, *grid):
        require(
            not candidate.objective.adapts,
            f"{candidate.objective.name} adapts to a target, and the data has none; use source_only or auc",
        )
    plainest = _build_baseline(plain)
    same = repr(_clear_label(plainest)) == repr(_clear_label(given))
    return _with_labels(given, {AS_GIVEN: given, **({} if same else {PLAIN: plainest})}, grid)


def list_labelled_methods(
    plain: Mapping[str, Any], own: Experiment, metric: str, objectives: Sequence[str] = ()
) -> list[tuple[dict[str, Any], str]]:
    """Return what to try without a target: ``[objective]`` sections, each with the name of an algorithm.

    The objectives are those named or else the file's own and, for the metric ``auc``, also ``auc``.
    """
    names = _known_objectives(objectives) or [own.objective.name]
    losses = [options_for(plain, "objective", name, OBJECTIVES) for name in names]
    if metric == "auc" and not objectives and AUC.name not in names:
        scaled = own.run.participation == 1.0  # scaled steps are too large if only some sites take part
        losses.append({**options_for(plain, "objective", AUC.name, OBJECTIVES), "scaled": scaled})
    algorithms = dict.fromkeys((*LABELLED_ALGORITHMS[metric], own.algorithm.name))
    return [
        (loss, algorithm)
        for loss, algorithm in product(losses, algorithms)
        if loss["name"] == AUC.name or algorithm == own.algorithm.name or algorithm not in _FOR_AUC
    ]


def _build_labelled_grid(
    plain: Mapping[str, Any], own: Experiment, metric: str, objectives: Sequence[str]
) -> list[Experiment]:
    grid = []
    tried = list_labelled_methods(plain, own, metric, objectives)
    if metric == "auc":
        weighted = {**options_for(plain, "objective", SourceOnly.name, OBJECTIVES), "class_weights": "balanced"}
        tried += [(weighted, algorithm) for algorithm in _WEIGHTED_BY]
    for loss, algorithm in tried:
        table = options_for(plain, "algorithm", algorithm, ALGORITHMS)
        options = {option.name: option.default for option in fields(ALGORITHMS[algorithm])}
        given = {**options, **table}
        rated = ("lr_min",) if loss["name"] == SourceOnly.name else ("lr_min", "lr_max")
        axes = [[{key: _scale_rate(getattr(own.algorithm, key), by) for key in rated} for by in _RATES]]
        if "penalty_min" in options:
            axes.append([{"penalty_min": penalty, "penalty_max": penalty} for penalty in _PENALTIES])
        if "lr_weights" in options:
            axes.append([{"lr_weights": by * given["lr_weights"]} for by in _RATES])
        if "q" in options:
            axes.append([{"q": q} for q in _POWERS])
        for chosen in product(*axes):
            changed = {
                "objective": loss,
                "algorithm": {**table, **{key: value for part in chosen for key, value in part.items()}},
            }
            grid.append(experiment({**plain, **changed}))
    return grid


def _require_no_noise(given: Experiment) -> None:
    require(
        not given.transmission.private,
        f"transmission {given.transmission.name!r} adds noise to updates, but the validators that tuning goes by are "
        'sums over the clients\' own rows without noise; tune with transmission.name = "exact" if that is '
        "allowed, or choose the setting by other means",
    )


def _require_tunable(given: Experiment) -> None:
    """Refuse an experiment that trains on target labels or leaves nothing to judge by."""
    _require_no_noise(given)
    require(
        not isinstance(given.partition, TargetSupervised),
        "target_supervised learns from the target's labels, which tuning never looks at; use another partition",
    )
    require(given.run.probe_rows > 0, "run.probe_rows must be above 0: tuning judges by those target rows")


def _require_adapting(grid: Sequence[Experiment]) -> None:
    for candidate in grid:
        require(
            candidate.adapts or candidate.source_only,
            f"tuning judges by how a model does on the target, to which {candidate.objective.name} does not adapt; use "
            "another objective, or data without a target (data.labelled_only = true)",
        )


def _build_own_grid(tables: Mapping[str, Any]) -> list[Experiment]:
    for path, _ in grid_axes(tables[TUNE], TUNE):
        name = ".".join(path)
        require(
            path[0] in _TUNABLE,
            f"{TUNE}.{name} cannot be tuned: candidates must share their data and terms; vary {', '.join(_TUNABLE)}",
        )
        why = _NOT_TUNABLE.get(path[1]) if path[0] == "run" and len(path) > 1 else None
        require(why is None and path != ("run",), f"{TUNE}.{name} cannot be tuned: {why or 'vary its options'}")
    return grid(tables, TUNE)


def _default_grid(plain: Mapping[str, Any], given: Experiment, objectives: Sequence[str]) -> list[Experiment]:
    chosen = _known_objectives(objectives) or [given.objective.name]
    require(
        SourceOnly.name not in objectives,
        f"--objectives need not name {SourceOnly.name}, which is always a candidate; leave it out",
    )
    require(chosen != [SourceOnly.name], "the experiment trains source only, which has no adversary; name --objectives")
    algorithms = list(dict.fromkeys((given.algorithm.name, *_ALGORITHMS)))
    grid = []
    for objective, algorithm in product(chosen, algorithms):
        has_penalty = "penalty_min" in {option.name for option in fields(ALGORITHMS[algorithm])}
        for penalty, factor, nu in product(_PENALTIES if has_penalty else (None,), _LR_FACTORS, _NUS):
            penalties = {} if penalty is None else {"penalty_min": penalty, "penalty_max": penalty}
            rate = {"lr_max": _scale_rate(given.algorithm.lr_max, factor)}
            changed = {
                "algorithm": {**options_for(plain, "algorithm", algorithm, ALGORITHMS), **rate, **penalties},
                "objective": {**options_for(plain, "objective", objective, OBJECTIVES), "nu": nu},
            }
            grid.append(experiment({**plain, **changed}))
    return grid


def _known_objectives(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in OBJECTIVES:
            raise unknown("objective in --objectives", name, OBJECTIVES)
    return list(dict.fromkeys(names))


def _scale_rate(rate: Any, factor: float) -> Any:
    return {group: factor * value for group, value in rate.items()} if isinstance(rate, Mapping) else factor * rate


def _clear_label(candidate: Experiment) -> Experiment:
    return replace(candidate, run=replace(candidate.run, label=""))


def _changes(candidate: Experiment, given: Experiment) -> dict[str, Any]:
    """Return the options in which a candidate differs from the given experiment, by key.

    Equal penalties are merged into one key, and so are equal learning rates.
    """
    changes = {}
    for now, before in ((getattr(candidate, section), getattr(given, section)) for section in _TUNABLE):
        for option in fields(now):
            value = getattr(now, option.name)
            if option.name != "label" and value != _value_of(before, option, value):
                changes[option.name] = value
    for both in ("penalty", "lr"):
        if changes.get(f"{both}_min") is not None and changes[f"{both}_min"] == changes.get(f"{both}_max"):
            changes[both] = changes.pop(f"{both}_min")
            del changes[f"{both}_max"]
    names = {section: getattr(candidate, section).name for section in ("algorithm", "objective", "model")}
    renamed = {section: name for section, name in names.items() if name != getattr(given, section).name}
    return renamed | changes


def _value_of(part: Any, option: Field[Any], otherwise: Any) -> Any:
    """Return an option's value; if ``part`` lacks it, its default, or ``otherwise`` if that is not a plain value."""
    default = option.default if isinstance(option.default, str | int | float) else otherwise
    return getattr(part, option.name, default)


def _label(candidate: Experiment, given: Experiment) -> str:
    """Return the algorithm and all other differences from the given experiment, in words."""
    changes = _changes(candidate, given)
    changes.pop("algorithm", None)
    objective = [candidate.objective.name] if changes.pop("objective", None) else []
    return " ".join(
        [candidate.algorithm.name, *objective, *(f"{key}={_format_value(value)}" for key, value in changes.items())]
    )


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_format_value(each)}' for key, each in value.items())}}}"
    if is_dataclass(value):
        given = [(option.name, getattr(value, option.name), option.default) for option in fields(value)]
        options = [f"{name}={_format_value(each)}" for name, each, default in given if each != default]
        name = getattr(value, "name", type(value).__name__)
        return f"{name}({','.join(options)})" if options else str(name)
    return str(list(value) if isinstance(value, tuple) else value)


def _free_label(label: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, label
    while free in taken:
        number += 1
        free = f"{label} ({number})"
    return free
