"""Federated domain adaptation as a scikit-learn estimator: a thin wrapper around :func:`fedmm.adapt`."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from fedmm.algorithms import ALGORITHMS
from fedmm.core.algorithm import Algorithm
from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.objective import Objective
from fedmm.models.network import Network
from fedmm.models.zoo import MLP
from fedmm.objectives import OBJECTIVES, SourceOnly
from fedmm.training.adapt import adapt
from fedmm.training.adaptation import Adapted
from fedmm.training.clients import Client

__all__ = ["MASKED", "FederatedAdapter"]

MASKED = -1
"""The label of unlabelled rows, as in skada."""


class FederatedAdapter(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for target domains, trained over clients that each hold one domain.

    ``fit(X, y, sample_domain)`` follows skada: domains of 0 or more are sources, negative ones are targets, and every
    domain becomes its own client. Labels of target rows are ignored; by convention they are -1.

    objective, algorithm: a name, such as ``"dann"`` and ``"fedmm_restrained"``, or an instance.
    lr, penalty, local_steps, nu: options of an algorithm or objective that is given by name: both learning rates, both
        penalties, the local steps per round, the weight of the domain loss. None keeps its default.
    hidden: widths of the fully connected layers that compute features, if no model is given.
    model: any ``torch.nn.Module`` that maps rows to features, or a :class:`fedmm.Network`, instead of these layers.
    rounds, batch_size, device: as in :func:`fedmm.adapt`.
    random_state: the seed for reproducible results.

    After ``fit``: ``classes_``, ``n_features_in_``, ``feature_names_in_`` if X has feature names, and ``adapted_``, the
    :class:`fedmm.Adapted` with its history.
    """

    def __init__(
        self,
        objective: str | Objective = "dann",
        algorithm: str | Algorithm = "fedmm_restrained",
        *,
        lr: float | None = None,
        penalty: float | None = None,
        local_steps: int | None = None,
        nu: float | None = None,
        hidden: tuple[int, ...] = (64,),
        model: nn.Module | Network | None = None,
        rounds: int = 100,
        batch_size: int = 64,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.objective = objective
        self.algorithm = algorithm
        self.lr = lr
        self.penalty = penalty
        self.local_steps = local_steps
        self.nu = nu
        self.hidden = hidden
        self.model = model
        self.rounds = rounds
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_domain: ArrayLike | None = None) -> Self:
        """Train on rows X ``[rows, features]`` with labels y ``[rows]`` and domains ``sample_domain`` ``[rows]``.

        Without ``sample_domain``, rows labelled -1, None or NaN form one target domain and all others one source
        domain; if the labels are -1 and one other number, both are classes. Without any target the network is trained
        on the source only, whatever the objective.
        """
        rows: NDArray[np.float32] = validate_data(self, X, dtype=np.float32)
        labels = _labels(y)
        check_consistent_length(rows, labels)
        domains = _domains(sample_domain, labels)
        known = domains >= 0
        require(bool(known.any()), "every row belongs to a target domain; give labelled rows of a source domain too")
        unlabelled = np.flatnonzero(known & _missing(labels))
        where = int(unlabelled[0]) if len(unlabelled) else 0
        require(not len(unlabelled), f"y has no label in row {where}, which belongs to a source domain; give it one")
        masks = labels.dtype.kind == "O" and not known.all()
        learnt = np.array(labels[known].tolist()) if masks else labels[known]
        check_classification_targets(learnt)
        classes, numbers = np.unique(learnt, return_inverse=True)
        require(len(classes) > 1, f"y holds one class, {classes[0]!r}; at least two are needed")
        objective = self._objective()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        place = np.full(len(labels), -1)
        place[known] = numbers
        clients = []
        for domain in np.unique(domains):
            own = domains == domain
            source = (rows[own], place[own]) if domain >= 0 else None
            name = f"source {domain}" if domain >= 0 else f"target {-domain}"
            clients.append(Client(source, rows[own] if domain < 0 else None, name))
        self.adapted_: Adapted = adapt(
            clients,
            self._network(rows.shape[1], len(classes), seed),
            SourceOnly() if known.all() and objective.adapts else objective,
            self._algorithm(),
            _whole("rounds", self.rounds),
            batch_size=_whole("batch_size", self.batch_size),
            seed=seed,
            device=self.device,
            progress=False,
            best_by="",
            probe_rows=0,
        )
        self.classes_ = classes
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the predicted label of each row, one of ``classes_``."""
        chosen = self._probabilities(X).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return the probability of each class in the order of ``classes_``, ``[rows, classes]``."""
        return self._probabilities(X)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy on labelled rows, without those labelled None, NaN or, unless it is a class, -1."""
        labels, predicted = _labels(y), self.predict(X)
        check_consistent_length(predicted, labels)
        known = ~_missing(labels)
        if MASKED not in self.classes_.tolist():
            known &= labels != MASKED
        require(bool(known.any()), "no row has a label, so there is nothing to score")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        given = np.array(labels[known].tolist())
        return float(accuracy_score(given, predicted[known], sample_weight=weight))

    def _probabilities(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        rows: NDArray[Any] = self.adapted_.predict_proba(validate_data(self, X, dtype=np.float32, reset=False))
        return rows

    def _objective(self) -> Objective:
        chosen: Objective = _choose("objective", self.objective, Objective, OBJECTIVES, {"nu": self.nu})
        return chosen

    def _algorithm(self) -> Algorithm:
        given = {"lr": self.lr, "penalty": self.penalty, "local_steps": self.local_steps}
        chosen: Algorithm = _choose("algorithm", self.algorithm, Algorithm, ALGORITHMS, given)
        return chosen

    def _network(self, width: int, classes: int, seed: int) -> Network:
        if isinstance(self.model, nn.Module):
            return Network(self.model, classes)
        if isinstance(self.model, Network):
            told = f"model is a Network of {self.model.classes} classes, but y holds {classes}"
            require(self.model.classes == classes, f"{told}; make it with classes={classes}")
            return self.model
        require(self.model is None, f"model must be a torch.nn.Module or a fedmm.Network, not {self.model!r:.60}")
        widths = self.hidden if isinstance(self.hidden, tuple | list) else (self.hidden,)
        hidden = tuple(_whole("hidden", width) for width in widths)
        return MLP(hidden=hidden, centre="none").build((width,), classes, seed)


def _choose(what: str, given: Any, kind: type, table: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return an instance of ``kind``, given as such or by name with options; options that are None are left out."""
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(given, kind):
        more = ", ".join(options)
        require(not options, f"{more} cannot be combined with an instance as {what}; set these options on the instance")
        return given
    if not isinstance(given, str):
        raise FedmmError(f"{what} must be a name ({', '.join(table)}) or an instance, not {given!r:.60}")
    if given not in table:
        raise unknown(what, given, table)
    known = {field.name for field in fields(table[given])}
    values: dict[str, Any] = {}
    for name, value in options.items():
        targets = [name] if name in known else [f"{name}_min", f"{name}_max"]
        require(set(targets) <= known, f"{name} is not an option of {what} {given!r}; leave it out")
        values |= dict.fromkeys(targets, _plain(value))
    return table[given](**values)


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number, and anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _whole(name: str, value: Any) -> int:
    value = _plain(value)
    require(isinstance(value, int) and not isinstance(value, bool), f"{name} must be a whole number, not {value!r:.60}")
    return int(value)


def _labels(y: Any) -> NDArray[Any]:
    """Return y as an array ``[rows]``."""
    if y is None:
        raise FedmmError("FederatedAdapter requires y to be passed, but the target y is None")
    y = np.asarray(y)
    require(y.dtype.kind != "f" or not np.isinf(y).any(), "y contains infinity; give one label for each row")
    labels: NDArray[Any] = column_or_1d(y, warn=True)
    return labels


def _missing(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which labels are None or NaN."""
    if labels.dtype.kind == "f":
        missing: NDArray[np.bool_] = np.isnan(labels)
        return missing
    gone = [value is None or (isinstance(value, float) and math.isnan(value)) for value in labels.tolist()]
    return np.array(gone, dtype=bool)


def _domains(sample_domain: Any, labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return each row's domain, int64 ``[rows]``; without ``sample_domain``, 1 for labelled rows and -2 for others."""
    if sample_domain is None:
        masked = _missing(labels)
        numeric = labels.dtype.kind in "iuf" and len(np.unique(labels[~masked])) > 2
        return np.where(masked | (labels == MASKED) if numeric else masked, -2, 1)
    given = np.asarray(sample_domain)
    given = np.full(len(labels), given) if given.ndim == 0 else given
    require(
        given.ndim == 1 and given.dtype.kind in "iuf" and bool((given == np.round(given)).all()),
        "sample_domain must hold a whole number for each row: 0 or more for a source domain, negative for a target",
    )
    require(len(given) == len(labels), f"sample_domain has {len(given)} entries, but there are {len(labels)} rows")
    return given.astype(np.int64)
