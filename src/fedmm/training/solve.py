"""``fedmm.solve``: run a federated algorithm on any minimax problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, State
from fedmm.core.errors import FedmmError, require
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout, PerGroup, Point
from fedmm.core.problem import FederatedProblem, LocalReport, Statistics
from fedmm.core.projections import ConvexSet
from fedmm.core.validation import at_least, instance, per_group, positive
from fedmm.engines.in_process import InProcess
from fedmm.training.callbacks import Callback, Status
from fedmm.training.guard import Guard
from fedmm.training.history import History
from fedmm.training.loop import Guarded, train
from fedmm.training.privacy import EpsilonColumn, privacy_account, require_no_guard
from fedmm.training.progress import RoundProgress

Function = Callable[..., Tensor]
Batches = Callable[[], Iterable[Any]]
_USUAL = Terms()
_NO_GUARD = Guard()


class ClientState(dict[str, Tensor]):
    """A client's own state: named flat vectors over (omega, psi), with the signs of the field.

    FedMM's ``dual`` holds (lambda_i, beta_i).
    """

    def __init__(self, layout: Layout, state: State) -> None:
        super().__init__(state)
        self._layout = layout

    def split(self, name: str) -> tuple[Point, Point]:
        """Split a vector into (omega's part, psi's part), in the form in which the start was given."""
        return self._layout.unpack(self[name])


@dataclass(frozen=True)
class Solution:
    """The result of :func:`solve`.

    omega, psi: the server's point, in the form in which the start was given.
    clients: each client's own state, in the order in which clients were given; for FedMM ``clients[i]["dual"]``.
    history: one row per round (``drift``, ``consensus_gap``, ``dual_norm``, ``bytes_up``, ``bytes_down``, ``seconds``,
        ``loss``).
    status: ``completed``, or ``interrupted`` by Ctrl-C.
    server: the server's state; for AFL, ``server["weights"]`` holds the clients' weights, in order of their names.
    """

    omega: Point
    psi: Point
    clients: list[ClientState]
    history: History
    status: Status
    server: State = field(default_factory=dict)

    def __repr__(self) -> str:
        rounds, clients = len(self.history), len(self.clients)
        sizes = f"{_size(self.omega)} numbers in omega, {_size(self.psi)} in psi"
        return f"Solution({self.status} after {rounds} rounds over {clients} clients, {sizes})"


def _size(point: Point) -> int:
    return sum(part.numel() for part in ([point] if isinstance(point, Tensor) else point.values()))


def solve(
    functions: Sequence[Function | tuple[Function, Batches]],
    start: tuple[Point, Point],
    algorithm: Algorithm,
    rounds: int,
    *,
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    gradient_scale: PerGroup | tuple[PerGroup, PerGroup] = 1.0,
    terms: Terms = _USUAL,
    groups: Sequence[str] | None = None,
    guard: Guard = _NO_GUARD,
    seed: int = 0,
    constraints: Mapping[str, ConvexSet] | None = None,
    progress: bool = False,
) -> Solution:
    """Solve min over omega, max over psi of the mean of f_1 ... f_N, each known only to its own client.

    functions: one per client: ``f(omega, psi)`` that returns a 0-dim tensor, or a pair (f, batches) where ``batches()``
        returns an iterable and ``f(omega, psi, batch)`` takes one of its items. Batches continue across rounds, and
        restart when the iterable ends.
    start: (omega, psi), each a tensor or a dict of tensors, all of one float dtype.
    weights: alpha_i for each client, scaled to mean 1; equal by default.
    names: the clients' names, by default ``client-1`` ...; sums are taken in order of name.
    gradient_scale: a factor on the loss gradient alone: one for both sides, or a pair (omega's, psi's), each a number
        or a number per group of parameters.
    terms: how many clients take part in a round, which updates the server accepts, and how it aggregates them.
    groups: a label for each client; robust aggregation works within clients of one label. By default all are one group.
        Algorithms that weigh target clients recognise them by the word ``target`` in the label.
    guard: what to do about rounds that are not finite or explode; by default, only non-finite rounds end the run.
    seed: decides who takes part in a round, how many local steps it has if that is drawn, and any noise in updates.
    constraints: by group of parameters (a tensor's name, or the part of it before a dot), the set to which it is
        confined: ``Simplex()``, ``Box(low, high)``, ``HalfLine()`` or ``Ball(radius)``. The start is projected onto it.
    """
    instance("algorithm", algorithm, Algorithm)
    instance("terms", terms, Terms)
    instance("guard", guard, Guard)
    at_least("rounds", rounds, 1)
    at_least("seed", seed, 0)
    require(
        isinstance(functions, Sequence),
        f"functions is {type(functions).__name__}; give a list with a function per client",
    )
    require(len(functions) > 0, "solve needs at least one client's function")
    names = default_names(len(functions)) if names is None else list(names)
    require(len(names) == len(functions), f"{len(names)} names were given for {len(functions)} clients")
    for name in names:
        require(isinstance(name, str), f"a client's name must be text, not {name!r:.60}")
    require(
        groups is None or len(groups) == len(functions),
        f"{len(groups or ())} groups were given for {len(functions)} clients",
    )
    require_no_guard(terms, guarded=guard.watches)
    require(
        isinstance(start, tuple | list) and len(start) == 2,
        f"start must be a pair (omega, psi) of tensors, or of dicts of tensors, not {type(start).__name__}",
    )
    layout = Layout.of(*start)
    first = layout.pack(*start)
    require(bool(first.isfinite().all()), "start has a value that is NaN or infinite; give finite numbers")
    require(
        not isinstance(gradient_scale, tuple) or len(gradient_scale) == 2,
        "gradient_scale must be a number, or a pair (omega's, psi's)",
    )
    scale_min, scale_max = gradient_scale if isinstance(gradient_scale, tuple) else (gradient_scale, gradient_scale)
    per_group("gradient_scale", scale_min, zero=True)
    per_group("gradient_scale", scale_max, zero=True)
    scale = layout.join(scale_min, scale_max)
    clients = [
        FunctionClient(name, *_split(function, name), layout, scale * alpha, alpha)
        for name, function, alpha in zip(names, functions, mean_one(weights, len(functions)), strict=True)
    ]
    grouped = dict(zip(names, groups, strict=True)) if groups else {}
    algorithm.require_clients(grouped, {client.name: client.alpha for client in clients})
    require(
        constraints is None or isinstance(constraints, Mapping),
        f"constraints must be a dict of a set for each group of parameters, not {type(constraints).__name__}",
    )
    problem = FederatedProblem(layout, first, clients, groups=grouped, seed=seed, constraints=constraints or {})
    if problem.projection:
        problem = replace(problem, start=problem.projection(first))

    def engine(rule: Algorithm) -> InProcess:
        return InProcess(problem, rule, rounds, guard.terms(terms))

    guarded = Guarded(guard, algorithm, engine) if guard.watches else None
    account = privacy_account(terms, problem, algorithm)
    watching: list[Callback] = [RoundProgress(algorithm.name, rounds, show=progress)]
    watching += [EpsilonColumn(account)] if account else []
    training = train(engine(algorithm), rounds, watching, guarded=guarded)
    omega, psi = layout.unpack(training.state.z)
    own = [ClientState(layout, training.state.clients[name]) for name in names]
    solution = Solution(omega, psi, own, training.history, training.status, dict(training.state.server))
    if training.error:
        training.error.partial = solution
        raise training.error
    return solution


def default_names(count: int) -> list[str]:
    """Return ``client-1`` ..., zero-padded so that they sort in this order."""
    width = len(str(count))
    return [f"client-{number:0{width}d}" for number in range(1, count + 1)]


def mean_one(weights: Sequence[float] | None, count: int) -> list[float]:
    """Return the client weights alpha_i scaled to mean 1; all 1 if none are given."""
    if weights is None:
        return [1.0] * count
    require(isinstance(weights, Sized), f"weights must be a list of a number per client, not {weights!r:.60}")
    require(len(weights) == count, f"{len(weights)} weights were given for {count} clients")
    for weight in weights:
        positive("client weights", weight)
    mean = sum(weights) / count
    return [weight / mean for weight in weights]


def _split(function: Function | tuple[Function, Batches], name: str) -> tuple[Function, Batches | None]:
    require(
        not isinstance(function, tuple) or len(function) == 2,
        f"the function of client {name!r} must be f, or a pair (f, batches)",
    )
    f, batches = function if isinstance(function, tuple) else (function, None)
    require(callable(f), f"the function of client {name!r} cannot be called: it is {type(f).__name__}")
    require(
        batches is None or callable(batches),
        f"the batches of client {name!r} must be a function that makes an iterable, for example lambda: loader",
    )
    return f, batches


class FunctionClient:
    """A client whose f_i is a Python function.

    f: called with omega, psi and, if there are batches, one of them. batches: returns an iterable of batches; None for
        none. layout: of omega and psi in the flat vector. scale: a factor on the gradient, per coordinate or scalar.
    alpha: a factor on the value of f_i, if that is reported.
    """

    def __init__(
        self, name: str, f: Function, batches: Batches | None, layout: Layout, scale: Tensor, alpha: float = 1.0
    ) -> None:
        self.name = name
        self.layout = layout
        self.alpha = alpha
        self._f = f
        self._batches = batches
        self._scale = scale
        self._iterator: Iterator[Any] = iter(())
        self._drawn = 0
        self._last: Any = None

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> FunctionRound:
        """Begin round t (from 0) with ``steps`` local steps."""
        return FunctionRound(self, first_batch=t * steps)

    def gradient(self, z: Tensor, batch_number: int) -> tuple[Tensor, Tensor]:
        """Return the scaled signed field at z on one batch, and the value of f_i there."""
        leaves = {block.name: tensor.detach().requires_grad_() for block, tensor in self.layout.tensors(z)}
        point = self.layout.as_given(leaves)
        batch = () if self._batches is None else (self._batch(batch_number),)
        try:
            value = self._f(*point, *batch)
        except FedmmError:
            raise
        except Exception as problem:
            raise FedmmError(f"the function of client {self.name!r} failed: {_one_line(problem)}") from problem
        if not isinstance(value, Tensor) or value.dim() != 0:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise FedmmError(f"the function of client {self.name!r} must return a 0-dim tensor, not {got}")
        require(value.requires_grad, f"the function of client {self.name!r} depends on neither omega nor psi")
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return self.layout.signed(list(gradients)) * self._scale, value.detach()

    def _batch(self, number: int) -> Any:
        """Return batch ``number`` of an endless pass; a batch before the last one drawn restarts the pass."""
        if number == self._drawn - 1:
            return self._last
        if number < self._drawn:
            self._iterator, self._drawn = iter(()), 0
        while True:
            batch = next(self._iterator, _END)
            if batch is _END:
                batch = self._begin_again()
            self._drawn += 1
            if self._drawn > number:
                self._last = batch
                return batch

    def _begin_again(self) -> Any:
        assert self._batches is not None
        try:
            self._iterator = iter(self._batches())
        except TypeError as problem:
            raise FedmmError(
                f"the batches of client {self.name!r} must be a function that makes an iterable: {_one_line(problem)}"
            ) from problem
        batch = next(self._iterator, _END)
        require(batch is not _END, f"the batches of client {self.name!r} are empty")
        return batch


_END = object()


def _one_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}".splitlines()[0]


class FunctionRound:
    """One round of a :class:`FunctionClient`."""

    def __init__(self, client: FunctionClient, first_batch: int) -> None:
        self._client = client
        self._first = first_batch
        self._values: dict[int, Tensor] = {}

    def field(self, z: Tensor, step: int) -> Tensor:
        field, value = self._client.gradient(z, self._first + step)
        self._values.setdefault(step, value)
        return field

    def first_value(self) -> Tensor:
        return self._client.alpha * self._values[0]

    def close(self) -> LocalReport:
        return LocalReport({"loss": float(torch.stack(list(self._values.values())).mean())})
