"""The theorem's quantities along a run: the gradient of Phi, and how well local problems were solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.errors import Diverged, FedmmError, require
from fedmm.core.layout import Layout, Point
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.core.validation import at_least, positive
from fedmm.engines.in_process import InProcess
from fedmm.engines.worker import Worked, Worker
from fedmm.theory.spectra import Derivatives, Function, mean_of, require_functions, solve_definite
from fedmm.training.solve import FunctionClient, default_names


@dataclass(frozen=True)
class Residuals:
    """The residuals of one round t, from 1, for N clients in the order given.

    ================  ==================  ====================================================================
    field             symbol              meaning
    ================  ==================  ====================================================================
    phi               Phi(omega_0^t)      at the server's new point
    gradient_norm     of dPhi(omega_0^t)  what the theorem drives to 0
    e_omega [N]       e_{omega,i}^t       the norm of d_omega L_i at the client's last local step (assumption 3)
    e_psi [N]         e_{psi,i}^t         the norm of d_psi L_i there
    epsilon [N]       epsilon_i^t         the distance of psi_i^t from psi*(omega_i^t), psi* that of the mean f
    server [size]     z_0^t               the server's new point
    points [N, size]  z_i^t               the clients' points after their local steps
    ================  ==================  ====================================================================

    L_i is the local augmented Lagrangian. For an algorithm without penalty or duals it is f_i, and e is the norm of the
    direction of its local step.
    """

    round: int
    phi: float
    gradient_norm: float
    e_omega: Tensor
    e_psi: Tensor
    epsilon: Tensor
    server: Tensor
    points: Tensor


@dataclass(frozen=True)
class Observation:
    """An observed run: Phi at the start, the residuals of the observed rounds, and why it ended early, if it did."""

    layout: Layout
    start: PhiAt
    rounds: list[Residuals]
    diverged: str = ""

    @property
    def gradient_norms(self) -> list[float]:
        """||dPhi(omega_0^t)|| of the observed rounds."""
        return [round_.gradient_norm for round_ in self.rounds]

    @property
    def path(self) -> list[tuple[Point, Point]]:
        """The server's points as (omega, psi), in the form in which the start was given."""
        return [self.layout.unpack(round_.server) for round_ in self.rounds]


@dataclass(frozen=True)
class _Seen:
    """A client's round: what it was sent, its state before, and where its local steps ended."""

    sent: State
    own: State
    z: Tensor
    c: Coefficients


@dataclass(frozen=True)
class _WatchedWorker(Worker):
    """A worker that records what it saw."""

    seen: dict[str, _Seen] = field(default_factory=dict)

    def run(
        self,
        t: int,
        sent: State,
        own: State,
        statistics: Statistics,
        session: int = 0,
        importance: float | None = None,
    ) -> Worked:
        worked = super().run(t, sent, own, statistics, session, importance)
        self.seen[self.name] = _Seen(sent, own, worked.upload["z"], self.coefficients(t))
        return worked


class Observed:
    """The in-process engine under observation: bit-identical rounds, and ``residuals`` of the last one.

    functions: f_i(omega, psi), one per client of the problem, in the order of its clients.
    """

    def __init__(
        self, problem: FederatedProblem, functions: Sequence[Function], algorithm: Algorithm, rounds: int
    ) -> None:
        require_functions(functions)
        require(
            not algorithm.weighs_clients,
            f"residuals are defined for the mean of the clients' functions, and {algorithm.name} weights them; use an "
            "algorithm such as fedmm",
        )
        self._engine = InProcess(problem, algorithm, rounds)
        self._functions = dict(zip([client.name for client in problem.clients], functions, strict=True))
        self._algorithm = algorithm
        self._layout = problem.layout
        self._seen: dict[str, _Seen] = {}
        self._engine.workers = {
            name: _WatchedWorker(**vars(w), seen=self._seen) for name, w in self._engine.workers.items()
        }
        self.phi = Phi(functions, problem.layout.unpack(problem.start))

    def start(self) -> FederatedState:
        """Return the state before the first round."""
        return self._engine.start()

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """Run one round; return the new state and the round's record."""
        return self._engine.run_round(state)

    def residuals(self, state: FederatedState) -> Residuals:
        """Return the residuals of the round that ended in this state, which must be the last one run."""
        split = self._layout.min_size
        seen = [self._seen[name] for name in self._functions]
        brackets = torch.stack(
            [self._bracket(function, each) for function, each in zip(self._functions.values(), seen, strict=True)]
        )
        points = torch.stack([step.z for step in seen])
        best = torch.stack([self.phi.at(z[:split]).psi for z in points])
        at_server = self.phi.at(state.z[:split])
        return Residuals(
            state.round,
            at_server.value,
            float(at_server.gradient.norm()),
            brackets[:, :split].norm(dim=-1),
            brackets[:, split:].norm(dim=-1),
            (points[:, split:] - best).norm(dim=-1),
            state.z,
            points,
        )

    def _bracket(self, function: Function, seen: _Seen) -> Tensor:
        """Return the direction of a local step from the client's last point: what a step of learning rate 1 subtracts.

        If a step is more than ``local_step``, the points it looks at depend on the learning rate, so the round's rate
        is used and divided out.
        """
        rule, z, sent, c = self._algorithm, seen.z, seen.sent, seen.c
        if rule.plain:
            one = Coefficients(c, lr=self._layout.scalar(1.0))
            return z - rule.local_step(z, sent, seen.own, self._field(function, z), one)
        own = rule.begin(z, sent, seen.own, c)
        F = G = self._field(function, z)
        if rule.looks:
            G = self._field(function, rule.look(z, sent, own, F, c))
        return (z - rule.step(z, sent, own, F, G, c)[0]) / c.lr

    def _field(self, function: Function, z: Tensor) -> Tensor:
        return self._layout.signs() * Derivatives(function, self._layout, z).gradient


def observe(
    functions: Sequence[Function],
    start: tuple[Point, Point],
    algorithm: Algorithm,
    rounds: int,
    *,
    every: int = 1,
    far: float = 1e6,
) -> Observation:
    """Run an algorithm as ``fedmm.solve`` would, and measure the theorem's quantities.

    functions: one per client, f(omega, psi) over all its data, strongly concave in psi.
    start: (omega, psi), each a tensor or a dict of tensors; use float64 if residuals should fall below 1e-7.
    every: rounds between observations, each of which costs a few Newton steps per client; the last round is observed.
    far: the run has diverged if the server's distance from its start exceeds this many times 1 plus the start's norm.
    """
    require_functions(functions)
    at_least("rounds", rounds, 0)
    at_least("every", every, 1)
    positive("far", far)
    layout = Layout.of(*start)
    z = layout.pack(*start)
    clients = [
        FunctionClient(name, function, None, layout, layout.scalar(1.0))
        for name, function in zip(default_names(len(functions)), functions, strict=True)
    ]
    engine = Observed(FederatedProblem(layout, z, clients), functions, algorithm, rounds)
    first = engine.phi.at(z[: layout.min_size])
    found: list[Residuals] = []
    state = engine.start()
    for t in range(1, rounds + 1):
        try:
            state, _ = engine.run_round(state)
        except Diverged as problem:
            return Observation(layout, first, found, problem.reason)
        if float((state.z - z).norm()) > far * (1 + float(z.norm())):
            return Observation(layout, first, found, f"the server is far from its start in round {t}")
        if t % every == 0 or t == rounds:
            found.append(engine.residuals(state))
    return Observation(layout, first, found)


_MOST_STEPS = 100
_SHORTEST = 2.0**-40


@dataclass(frozen=True)
class PhiAt:
    """Phi at one omega. value: Phi(omega). gradient: of Phi, ``[omega's size]``. psi: psi*(omega), ``[psi's size]``."""

    value: float
    gradient: Tensor
    psi: Tensor


class Phi:
    """Phi(omega), the maximum over psi of the mean f of the clients' functions, for which FedMM's theorem is stated.

    functions: f_i(omega, psi), strongly concave in psi.
    start: (omega, psi) in the form that the functions take; the first search starts from this psi.
    tolerance: of ||d_psi f||, relative to 1 plus its size where a search starts. By default eps^(2/3) of the dtype.

    The maximum is found by Newton's method with conjugate gradients. By Danskin's theorem the gradient of Phi is
    ``d_omega f(omega, psi*(omega))``. This holds for the mean f and its own ``psi*``, not for an f_i with the mean's.
    """

    def __init__(
        self, functions: Sequence[Function], start: tuple[Point, Point], tolerance: float | None = None
    ) -> None:
        require_functions(functions)
        self.layout = Layout.of(*start)
        if tolerance is None:
            tolerance = torch.finfo(self.layout.dtype).eps ** (2 / 3)
        positive("tolerance", tolerance)
        self._tolerance = tolerance
        self._function = mean_of(functions)
        self._guess = self.layout.pack(*start)[self.layout.min_size :]

    def __call__(self, omega: Point) -> PhiAt:
        """Return Phi at omega, given in the form of the start."""
        _, psi = self.layout.unpack(torch.cat([self._guess.new_zeros(self.layout.min_size), self._guess]))
        return self.at(self.layout.pack(omega, psi)[: self.layout.min_size])

    def at(self, omega: Tensor) -> PhiAt:
        """Return Phi at a flat omega ``[omega's size]``; the search starts where the last one ended."""
        here = self._derivatives(omega, self._guess)
        slope = here.side("psi")
        target = self._tolerance * (1 + slope.norm())
        for _ in range(_MOST_STEPS):
            if slope.norm() <= target:
                break
            here = self._newton_step(here, omega)
            slope = here.side("psi")
        else:
            raise FedmmError(f"the maximum over psi was not found in {_MOST_STEPS} Newton steps: is f concave in psi?")
        return PhiAt(float(here.value), here.side("omega").clone(), self._guess)

    def _newton_step(self, here: Derivatives, omega: Tensor) -> Derivatives:
        """Take one ascent step, halved until f rises or, if f is flat to rounding, until the slope falls."""
        slope = here.side("psi")
        direction = solve_definite(lambda v: -here.block("psi", "psi", v), slope, self._tolerance)
        share = 1.0
        while share > _SHORTEST:
            psi = self._guess + share * direction
            ahead = self._derivatives(omega, psi)
            rises = ahead.value >= here.value + 1e-4 * share * (slope @ direction)
            if rises or ahead.side("psi").norm() < 0.9 * slope.norm():
                self._guess = psi
                return ahead
            share /= 2
        raise FedmmError("the maximum over psi was not found: no step along the Newton direction increases f")

    def _derivatives(self, omega: Tensor, psi: Tensor) -> Derivatives:
        return Derivatives(self._function, self.layout, torch.cat([omega, psi]))
