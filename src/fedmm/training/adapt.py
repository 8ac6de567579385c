"""``fedmm.adapt``: federated domain adaptation of a network over the clients' own data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedmm.algorithms import RestrainedFedMM
from fedmm.core.algorithm import Algorithm
from fedmm.core.errors import require
from fedmm.core.federation import Terms
from fedmm.core.objective import Objective
from fedmm.core.options import DEFAULT_VALIDATOR, TERMS, TrainOptions
from fedmm.core.problem import View, WholeRows
from fedmm.core.validation import instance, require_device
from fedmm.data.rows import Keys
from fedmm.models.network import Network
from fedmm.objectives import DANN
from fedmm.training.adaptation import Adaptation, Adapted
from fedmm.training.callbacks import Callback, EarlyStopping, OnRound
from fedmm.training.checkpoints import open_call_folder
from fedmm.training.clients import Client
from fedmm.training.guard import Guard
from fedmm.training.history import Row

_DANN = DANN()
_RESTRAINED_FEDMM = RestrainedFedMM()
_WHOLE_ROWS = WholeRows()
_USUAL = Terms()
_NO_GUARD = Guard()
_TO_THE_END = EarlyStopping()


def adapt(
    clients: Sequence[Client],
    model: Network,
    objective: Objective = _DANN,
    algorithm: Algorithm = _RESTRAINED_FEDMM,
    rounds: int = 300,
    *,
    validation: Any = None,
    source_validation: Any = None,
    probe_rows: int = 2000,
    evaluate_every: int = 1,
    batch_size: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    view: View = _WHOLE_ROWS,
    terms: Terms = _USUAL,
    guard: Guard = _NO_GUARD,
    best_by: str = DEFAULT_VALIDATOR,
    stopping: EarlyStopping = _TO_THE_END,
    progress: bool = True,
    on_round: Callable[[Row], None] | None = None,
    callbacks: Sequence[Callback] = (),
    resume: str | Path | None = None,
    checkpoint_every: int = 0,
    checkpoint_seconds: float = 60.0,
    keep_checkpoints: int = 2,
    keys: Keys | None = None,
) -> Adapted:
    """Train one model for the target over clients whose data stays where it is.

    objective, algorithm: by default DANN, trained with the restrained FedMM.
    validation: labelled rows for monitoring, never for training or selection: (x, y) of the target, or a dict such as
        ``{"target": (x, y), "source": (x, y)}``; the history then has ``target_accuracy`` and so on.
    source_validation: labelled source rows (x, y) that are used neither to train nor to test; the history then has
        their mean cross entropy as ``source_risk``, by which hyperparameters may be chosen.
    probe_rows: the largest number of the clients' own target rows to evaluate without labels; the history then has
        ``target_information`` (the entropy of the mean prediction minus ``target_entropy``; higher is better) and
        ``target_entropy`` (the mean entropy of a prediction). 0 for none.
    evaluate_every: rounds between evaluations; the last round is always evaluated.
    batch_size: rows per local step, split in proportion to a client's source and target rows.
    seed: decides the heads' initial weights, batches, dropout masks, random maps, who takes part in a round, and any
        noise in updates; the same seed gives the same result.
    view: how rows are shown to the network, for example ``CropAndFlip(224)``; by default unchanged.
    terms: how many clients take part in a round, which updates the server accepts, and how it aggregates them.
    guard: what to do about rounds that are not finite or explode; by default, only non-finite rounds end the run.
    best_by: the validator that chooses the best round, whose model is ``best`` of the result; empty for none.
    stopping: ends the training early by a validator, for example ``EarlyStopping("target_information", patience=20)``.
    progress: show a bar on the terminal. on_round: called with each round's row of the history.
    callbacks: objects that watch the training and may end it: see :class:`fedmm.Callback`.
    resume: a folder for checkpoints. If it holds checkpoints of the same call, training continues from the newest, with
        a bit-identical result; a completed call returns its result at once, and a different call is refused.
    checkpoint_every, checkpoint_seconds: rounds and seconds between two checkpoints, 0 to ignore that count; the last
        state is always written. keep_checkpoints: how many to keep.
    keys: the keys of input and label if a Dataset's rows are dicts with unusual keys, for example
        ``("scan", "diagnosis")``.

    Rows may be numpy arrays, torch tensors, lists, pandas DataFrames, Datasets, or DataLoaders, which are read once.
    Columns of DataFrames are matched by name; words, in columns or as labels, are numbered over all clients.
    """
    instance("terms", terms, Terms)
    instance("stopping", stopping, EarlyStopping)
    require(on_round is None or callable(on_round), f"on_round must be a function of a row, not {on_round!r:.60}")
    _require_options(best_by, dtype, view)
    require_device(device)
    options = TrainOptions(
        rounds=rounds, seed=seed, batch_size=batch_size, evaluate_every=evaluate_every, probe_rows=probe_rows,
        device=str(device), dtype=str(dtype).removeprefix("torch."),  # type: ignore[arg-type]
        checkpoint_every=checkpoint_every, checkpoint_seconds=checkpoint_seconds, keep_checkpoints=keep_checkpoints,
        best_by=best_by, **asdict(stopping), **{name: getattr(terms, name) for name in TERMS},
    )  # fmt: skip
    adaptation = Adaptation(
        clients, model, objective, algorithm, options,
        validation=validation, source_validation=source_validation, view=view, terms=terms, guard=guard, keys=keys,
    )  # fmt: skip
    best = adaptation.best_model()
    watching: list[Callback] = [best, *([OnRound(on_round)] if on_round else []), *callbacks]
    resume_from = None
    if resume is not None:
        checkpoints, resume_from, said = open_call_folder(resume, adaptation, best)
        for line in said:
            warnings.warn(line, stacklevel=2)
        watching.append(checkpoints)
    adapted, error = adaptation.run(watching, resume_from, progress=progress)
    if error:
        error.partial = adapted
        raise error
    return adapted


def _require_options(best_by: object, dtype: object, view: object) -> None:
    require(isinstance(best_by, str), f"best_by must be a validator's name, or empty, not {best_by!r:.60}")
    require(
        isinstance(dtype, torch.dtype) and dtype.is_floating_point,
        f"dtype must be a float dtype of torch, not {dtype!r}",
    )
    shows = all(callable(getattr(view, part, None)) for part in ("shape", "train", "evaluate"))
    require(
        shows and not isinstance(view, type), f"view must be a view such as fedmm.CropAndFlip(224), not {view!r:.60}"
    )
