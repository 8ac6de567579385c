"""An adaptation that is checked and ready to run, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import Engine, FederatedState
from fedmm.core.errors import Diverged, count_of, require
from fedmm.core.federation import Terms
from fedmm.core.objective import Objective, Outputs
from fedmm.core.options import DEFAULT_VALIDATOR, TrainOptions
from fedmm.core.problem import Statistics, View, WholeRows
from fedmm.core.signals.validators import validator
from fedmm.core.validation import instance
from fedmm.data.row_format import RowFormat
from fedmm.data.rows import Keys, Rows
from fedmm.engines.in_process import InProcess
from fedmm.models.devices import precision
from fedmm.models.flat import FlatNetwork
from fedmm.models.network import Network
from fedmm.training.callbacks import (
    Best,
    BestModel,
    Callback,
    EarlyStopping,
    Status,
    Stopped,
    Training,
    best_model_in,
)
from fedmm.training.clients import Client, client_names, domain_odds, format_clients, take_stock
from fedmm.training.evaluators import MeasuresElsewhere, columns, domain_metrics, evaluate
from fedmm.training.guard import Guard
from fedmm.training.history import History
from fedmm.training.loop import Guarded, RoundEvaluation, train
from fedmm.training.measured_rows import (
    accuracy_evaluators,
    held_back_evaluator,
    risk_evaluator,
    source_evaluator,
    target_evaluator,
)
from fedmm.training.predictor import ARRAYS, Predictor, RowsShown
from fedmm.training.privacy import EpsilonColumn, privacy_account, require_no_guard, require_nothing_else_is_told
from fedmm.training.problem import adaptation_problem
from fedmm.training.progress import RoundProgress
from fedmm.training.snapshots import ResumePoint

_WHOLE_ROWS = WholeRows()
_NO_GUARD = Guard()


class Adapted(Predictor):
    """A trained model and the record of its training.

    history: one row per round: accuracies on the validation sets, losses, drift, consensus gap, bytes, seconds.
    status: ``completed``, or ``interrupted`` by Ctrl-C (the model is then that of the last finished round).
    stopped: the round in which early stopping or another callback ended the training, and why; otherwise None.
    state: the federation's state after the last round, with every client's own state.
    best: the model of the best round by a validator; None if no validator was named or measured.
    """

    def __init__(
        self,
        function: FlatNetwork,
        statistics: Statistics,
        training: Training,
        show: RowsShown | None = None,
        form: RowFormat = ARRAYS,
        label: str = "model",
    ) -> None:
        super().__init__(function, training.state.model, {**function.statistics, **statistics}, show, form)
        self.state: FederatedState = training.state
        self.history: History = training.history
        self.status: Status = training.status
        self.stopped: Stopped | None = training.stopped
        self.best = None if training.best is None else ChosenModel(function, training.best, self.show, form)
        self._label = label

    def __repr__(self) -> str:
        rounds, clients, accuracy = self.state.round, len(self.state.clients), self.history.last("target_accuracy")
        said = [
            f"{self._label}: {count_of(rounds, 'round')} over {count_of(clients, 'client')}",
            *([] if self.status == "completed" else [self.status]),
            *([] if accuracy is None else [f"target accuracy {accuracy:.1%}"]),
            *([] if self.best is None else [f"best by {self.best.by.name} in round {self.best.round}"]),
        ]
        return f"Adapted({', '.join(said)})"


class ChosenModel(Predictor):
    """The model of a training's best round. by: the validator; value: its value; row: that round of the history."""

    def __init__(self, function: FlatNetwork, best: Best, show: RowsShown, form: RowFormat = ARRAYS) -> None:
        super().__init__(function, best.z, {**function.statistics, **best.statistics}, show, form)
        self.by = best.by
        self.round, self.value, self.row = best.round, best.value, best.row

    def __repr__(self) -> str:
        return f"Chosen(round {self.round}, best by {self.by.name}: {self.value:.4g})"


@dataclass(frozen=True, eq=False)
class WholeNetwork:
    """A network with a frozen part, some stored rows that it takes, ``[k, *stored]``, and how they are shown to it."""

    network: Network
    sample: Tensor
    view: View


class Adaptation:
    """An adaptation that is checked and ready to run; the other arguments are those of :func:`adapt`.

    terms: by default, those of the options.
    input_mean: of all clients' training inputs, if the clients here only stand in for remote ones.
    class_shares: of all clients' labelled rows, if the objective needs them and the clients here only stand in.
    batches: by stand-in client that holds both domains, the number of rows of each in its batches, if known.
    held_back: by client, labelled source rows kept from training; evaluated if there is no ``source_validation``.
    held_at: by set of ``validation``, and for ``source_validation``, the number of the site that holds each row.
    whole: the complete network and its rows, if clients hold the outputs of its frozen part; predictions use it.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        model: Network,
        objective: Objective,
        algorithm: Algorithm,
        options: TrainOptions,
        *,
        validation: Any = None,
        source_validation: Any = None,
        view: View = _WHOLE_ROWS,
        terms: Terms | None = None,
        guard: Guard = _NO_GUARD,
        input_mean: float | None = None,
        class_shares: Sequence[float] | None = None,
        batches: Mapping[str, tuple[int, int]] | None = None,
        held_back: Mapping[str, Rows] | None = None,
        held_at: Mapping[str, Tensor] | None = None,
        whole: WholeNetwork | None = None,
        keys: Keys | None = None,
    ) -> None:
        instance("model", model, Network)
        instance("objective", objective, Objective)
        instance("algorithm", algorithm, Algorithm)
        instance("guard", guard, Guard)
        seed, batch_size, probe_rows = options.seed, options.batch_size, options.probe_rows
        self.options = options
        self.rounds = options.rounds
        self.stopping = EarlyStopping(**options.stopping)
        self.algorithm = algorithm
        self.objective = objective = objective.restrain() if algorithm.restrains else objective
        self.label = f"{algorithm.name} {objective.name}"
        clients, self.form = format_clients(clients, keys)
        self.form.require_classes(model.classes)
        self.client_data = take_stock(clients, objective, model.classes)
        standing_in = input_mean is not None
        odds = domain_odds(self.client_data, objective, batch_size, standing_in=standing_in, told=batches)
        self.odds = odds
        algorithm.require_clients(
            {client.name: client.domains for client in self.client_data},
            {client.name: client.alpha for client in self.client_data},
        )
        self.problem, self.function = adaptation_problem(
            self.client_data, model, objective, seed=seed, batch_size=batch_size, dtype=options.torch_dtype,
            device=options.torch_device, view=view, mean=input_mean, shares=class_shares, odds=odds,
        )  # fmt: skip
        self.problem = replace(self.problem, listed=client_names(clients))
        self.view = view
        self.show = RowsShown(view, tuple(self.client_data[0].sample.shape[1:]))
        self._whole = whole
        self.guard = guard
        self.terms = guard.terms(terms or Terms(**options.terms))
        require_no_guard(self.terms, guarded=guard.watches)
        self.engine = self.engine_for(algorithm)
        self.account = privacy_account(self.terms, self.problem, self.algorithm)
        if self.account:
            require_nothing_else_is_told(
                probe_rows=probe_rows,
                centre=model.centre,
                trains_statistics=self.function.trains_statistics,
                objective=objective,
            )
        place = self.function.layout.device
        targets = {str(client.name): client.target for client in clients if client.target is not None}
        at = {} if targets or held_at is None else held_at
        self.evaluators = accuracy_evaluators(validation, model.classes, self.show, place, self.form, at)
        unlabelled = target_evaluator(targets, probe_rows, seed, self.show, place, model.classes, odds)
        if source_validation is not None:
            self.evaluators.append(
                risk_evaluator(
                    source_validation, model.classes, self.show, place, odds, self.form,
                    accuracy=not targets, held_at=at.get("source_validation"),
                )
            )  # fmt: skip
        elif held_back:
            risks = held_back_evaluator(
                held_back, probe_rows, seed, self.show, place, model.classes, odds, accuracy=not targets
            )
            self.evaluators += [] if risks is None else [risks]
        elif unlabelled is not None and odds is not None:
            sources = {
                client_data.name: client_data.source
                for client_data in self.client_data
                if client_data.source is not None
            }
            told = source_evaluator(sources, probe_rows, seed, self.show, place, odds)
            self.evaluators += [] if told is None else [told]
        self.evaluators += [] if unlabelled is None else [unlabelled]
        self.measures = columns(self.evaluators)
        self.best_by = self._measured("best_by", options.best_by)
        self._measured("stop_by", options.stop_by)

    def _measured(self, option: str, name: str) -> str:
        """Return a validator's name; refuse one that is not measured, except the default, which becomes empty."""
        if not name or validator(name, option).column in self.measures:
            return name
        unasked = option == "best_by" and name == DEFAULT_VALIDATOR
        require(unasked, f"{option} = {name!r} is not measured in this run: it needs {validator(name, option).needs}")
        return ""

    def best_model(self) -> BestModel:
        """Return the callback that keeps the best model of a run."""
        return BestModel(self.best_by, self.prediction_statistics)

    def callbacks(self) -> list[Callback]:
        """Return the callbacks that belong to the training itself: early stopping and the privacy account."""
        return [replace(self.stopping), *([EpsilonColumn(self.account)] if self.account else [])]

    def engine_for(self, algorithm: Algorithm) -> InProcess:
        """Return the reference engine for an algorithm: the run's own, or one with other step sizes."""
        return InProcess(self.problem, algorithm, self.rounds, self.terms)

    def run(
        self,
        callbacks: Sequence[Callback] = (),
        resume_from: ResumePoint | None = None,
        *,
        progress: bool = False,
        engines: Callable[[Algorithm], Engine] | None = None,
    ) -> tuple[Adapted, Diverged | None]:
        """Train; return the model after the last good round, and the error if the run diverged.

        callbacks, resume_from: as in :func:`fedmm.training.loop.train`; a ``BestModel`` among the callbacks replaces
        the default one. engines: makes an engine for an algorithm, by default the reference; if it measures rows
        elsewhere, the clients' own rows are not evaluated here.
        """
        elsewhere = engines.measured if isinstance(engines, MeasuresElsewhere) else None
        best = [] if best_model_in(callbacks) else [self.best_model()]
        with precision(self.options.precision, self.function.layout.device):
            training = train(
                engines(self.algorithm) if engines else self.engine,
                self.rounds,
                [*self.callbacks(), *best, RoundProgress(self.label, self.rounds, show=progress), *callbacks],
                resume_from,
                evaluation=RoundEvaluation(
                    partial(self.evaluate, elsewhere=elsewhere), self.measures, self.options.evaluate_every
                ),
                guarded=Guarded(self.guard, self.algorithm, engines or self.engine_for) if self.guard.watches else None,
            )
        return self.adapted(training), training.error

    def adapted(self, training: Training) -> Adapted:
        """Return the model that a training ended with."""
        function, show = self.predicting
        return Adapted(function, self.prediction_statistics(training.state), training, show, self.form, self.label)

    def before(self) -> Predictor:
        """Return the model before training."""
        function, show = self.predicting
        return Predictor(function, function.start, function.statistics, show, self.form)

    @cached_property
    def predicting(self) -> tuple[FlatNetwork, RowsShown]:
        """The network used for predictions, as a function of the same z, and how rows are shown to it."""
        if self._whole is None:
            return self.function, self.show
        layout, whole = self.function.layout, self._whole
        function = FlatNetwork(
            whole.network, self.objective, whole.view.evaluate(whole.sample), seed=self.options.seed,
            dtype=layout.dtype, device=layout.device,
        )  # fmt: skip
        assert function.layout.blocks == layout.blocks
        return function, RowsShown(whole.view, tuple(whole.sample.shape[1:]))

    def evaluate(
        self, state: FederatedState, elsewhere: Callable[[FederatedState], Mapping[str, Tensor]] | None = None
    ) -> dict[str, float | None]:
        """Return the evaluators' metrics of the server's model; None for what could not be measured.

        elsewhere: returns metrics on the clients' own rows, which are then not evaluated here.
        """
        statistics = self.prediction_statistics(state)

        def outputs(x: Tensor) -> Outputs:
            return Outputs(*(output.unsqueeze(0) for output in self.function.evaluate(state.model, statistics, x[0])))

        here = [[evaluator] for evaluator in self.evaluators if elsewhere is None or not evaluator.held_by]
        found = evaluate(here, outputs)
        found |= elsewhere(state) if elsewhere else {}
        found |= domain_metrics(found)
        return {column: float(found[column]) if column in found else None for column in self.measures}

    @property
    def predicting_clients(self) -> list[str]:
        """The clients whose running statistics, if they are local, are averaged for predictions on the target."""
        targets = [h.name for h in self.client_data if h.target is not None] or [h.name for h in self.client_data]
        return sorted(targets)

    @property
    def row_dtype(self) -> torch.dtype:
        """The dtype of the clients' rows."""
        return self.client_data[0].sample.dtype

    def prediction_statistics(self, state: FederatedState) -> Statistics:
        """Return the running statistics for predictions: the server's or, if local, the target clients' mean."""
        if self.function.policy != "local":
            return state.statistics
        own = [state.client_statistics[name] for name in self.predicting_clients]
        return {
            name: torch.stack([s[name] for s in own]).double().mean(dim=0).to(tensor.dtype)
            for name, tensor in state.statistics.items()
        }
