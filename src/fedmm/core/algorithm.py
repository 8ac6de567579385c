"""The base of federated minimax algorithms: frozen hyperparameters with pure methods over flat vectors.

One round, as every engine runs it (z has shape ``[size]`` for one client, or any leading axes for a stack)::

    server = algorithm.init_server(z)                      # once
    client = algorithm.init_client(z)                      # once, stays with the client
    c = algorithm.coefficients(layout, t, rounds)          # tensors, so that they can differ within a stack
    sent = algorithm.broadcast(server)
    z = sent["z"]
    repeat local_steps times: z = algorithm.local_step(z, sent, client, F_i(z), c)
    upload, client = algorithm.finish(z, sent, client, c)
    server = algorithm.server_update(server, the mean of the uploads and what it adds to the clients' sums, c)

F_i(z) = (df_i/d omega, -df_i/d psi) is the signed field: descending it is descent in omega and ascent in psi.

An algorithm that needs more overrides ``step`` instead of ``local_step``. Its client state may then change with every
step, and it may evaluate the field at a second point on the same batch::

    client = algorithm.begin(z, sent, client, c)           # the client's state, plus vectors for this round only
    repeat local_steps times:
        F = F_i(z)
        G = F_i(algorithm.look(z, sent, client, F, c))     # if the algorithm ``looks``, else F
        z, client = algorithm.step(z, sent, client, F, G, c)
    upload, client = algorithm.finish(z, sent, client, c)

An algorithm that needs the mean field at the server's point before its local steps has rounds ``in_pairs``, with the
same clients. In the first round of a pair each takes one step, so that the mean of the uploads reveals the mean field;
in the second, the clients counted in the first take the other steps. ``finish`` keeps what a client needs of the first.

An algorithm whose server weights its clients keeps numbers for each of them in the server's state, receives numbers
from each, and returns the factors on their fields::

    server = {**algorithm.init_server(z), **algorithm.init_per_client(clients, z)}
    weights = algorithm.importance(server)                 # client i works with weights[i] F_i, mean 1
    numbers = algorithm.report(f_i(z_0), z, sent, client, c)     # from each client, with its upload
    server = algorithm.server_update(server, the same with all numbers, and who was counted, c)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedmm.core.errors import require, unknown
from fedmm.core.layout import Layout, PerGroup
from fedmm.core.schedules import Constant, PairedSteps, Schedule, StepSchedule, as_schedule
from fedmm.core.validation import at_least, per_group

State = dict[str, Tensor]
"""Named vectors of shape ``[..., size]``: the state of a server or a client, or what they exchange."""

LocalSteps = int | Sequence[int] | Mapping[str, int]
"""The paper's M_i: one number for all clients, one per client in the order they are listed, or one per client name."""


class Aggregated(NamedTuple):
    """The aggregate of a round's uploads: named vectors ``[..., size]``.

    mean: of the uploads that were counted in the round, or their robust centre.
    gain: for the names that the algorithm ``accumulates``, the increase of the mean over *all* clients, present or not,
        of their summed updates. An update is an upload minus what was sent under its name (z_i - z_0), or the upload
        itself if nothing was sent. If all clients are present, the gain is their mean update.
    scalars: the clients' reports by name, ``[..., clients]`` ordered by client name, 0 for those not counted.
    counted, target: who was counted and who holds target rows, bool ``[..., clients]``; None without reports.
    """

    mean: State
    gain: State
    scalars: State = {}  # noqa: RUF012 - never written to
    counted: Tensor | None = None
    target: Tensor | None = None


class Coefficients(dict[str, Tensor]):
    """The hyperparameters of one round as tensors, each a scalar or one value per coordinate; ``c.lr`` is ``c["lr"]``.

    Engines add ``steps``, the client's number of local steps M_i.
    """

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Algorithm:
    """Base class of all algorithms; a subclass defines its hyperparameters and how it differs from plain averaging.

    lr_min, lr_max: eta_1 for omega, eta_2 for psi; each one number or one per parameter group. A learning rate
        multiplies a whole local step, including penalties and duals.
    lr_schedule: a factor on both over the rounds: a schedule such as ``DannDecay()``, or its name.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    accumulates: ClassVar[tuple[str, ...]] = ()
    """The uploads of which ``server_update`` needs the gain, because clients sum them up on their side too."""
    looks: ClassVar[bool] = False
    """Whether a local step needs the field at a second point, which :meth:`look` returns."""
    in_pairs: ClassVar[bool] = False
    """Whether rounds come in pairs: one of a single step, which reveals the mean field, and one of the other steps."""
    weighs_clients: ClassVar[bool] = False
    """Whether it optimises another mixture of the clients than their mean, and so has another saddle point."""
    restrains: ClassVar[bool] = False
    """Whether it restrains the features, as :meth:`fedmm.core.objective.Objective.restrain` does."""
    reports: ClassVar[tuple[str, ...]] = ()
    """The names of the numbers that each client sends with its upload; see :meth:`report`."""
    draws_by_importance: ClassVar[bool] = False
    """Whether clients are drawn by :meth:`importance`, not uniformly, in the rounds that :meth:`draws` selects."""

    lr_min: PerGroup = 0.01
    lr_max: PerGroup = 0.01
    lr_schedule: Schedule | str = field(default=Constant(), kw_only=True)

    def __post_init__(self) -> None:
        require(
            type(self).local_step is not Algorithm.local_step or type(self).step is not Algorithm.step,
            f"{type(self).__name__} needs a local_step, or a step",
        )
        require(
            not self.looks or type(self).look is not Algorithm.look,
            f"{type(self).__name__} sets looks, so it must define look, the point to look from",
        )
        require(
            not self.draws_by_importance or type(self).importance is not Algorithm.importance,
            f"{type(self).__name__} sets draws_by_importance, so it must define importance",
        )
        per_group("lr_min", self.lr_min)
        per_group("lr_max", self.lr_max)
        object.__setattr__(self, "lr_schedule", as_schedule("lr_schedule", self.lr_schedule))
        check_local_steps(self.steps)

    @property
    def steps(self) -> LocalSteps:
        """M_i as given; 1 for an algorithm without the option."""
        return getattr(self, "local_steps", 1)

    @property
    def step_schedule(self) -> StepSchedule | None:
        """The schedule of the number of local steps, if it differs between rounds."""
        return PairedSteps() if self.in_pairs else None

    def steps_in(self, own: int, seed: int, t: int) -> int:
        """Return the number of local steps in round t of a client with M_i = ``own``. seed: the run's."""
        return self.step_schedule.steps(own, seed, t) if self.step_schedule else own

    def most_steps(self, own: int) -> int:
        """Return the largest number of local steps in any round of a client with M_i = ``own``."""
        return self.step_schedule.most(own) if self.step_schedule else own

    def steps_told(self, own: int) -> int:
        """Return the least number of local steps that are mixed in what a client sends in a round. own: its M_i.

        A site may require several, so that no single step's gradient can be read off.
        """
        return 1 if self.step_schedule else own

    def ends_pair(self, t: int) -> bool:
        """Return whether only clients that were counted in the previous round take part in round t (from 0)."""
        return self.in_pairs and t % 2 == 1

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        """Return the hyperparameters of round t (from 0) as tensors."""
        schedule = as_schedule("lr_schedule", self.lr_schedule)
        return Coefficients(lr=layout.join(self.lr_min, self.lr_max) * schedule(t, rounds))

    def init_server(self, z: Tensor) -> State:
        """Return the server's initial state, which always contains ``z``."""
        return {"z": z}

    def init_client(self, z: Tensor) -> State:
        """Return a client's initial state, which never leaves the client."""
        return {}

    def init_per_client(self, clients: int, like: Tensor) -> State:
        """Return the server's initial numbers for each client, ``[..., clients]`` ordered by client name.

        They become part of its state and are never sent. like: ``[..., size]``, with the dtype and leading axes to use.
        """
        return {}

    def structure(self) -> tuple[object, ...]:
        """Return what else stacked algorithms of one class must share; everything else is in the coefficients."""
        return ()

    def broadcast(self, server: State) -> State:
        """Return what the server sends to every client."""
        return server

    def client_weights(self, steps: Tensor) -> Tensor | None:
        """Return the factors on the clients' z_i - z_0 before the mean, ``[..., clients]``; None for none.

        steps: M_i ``[..., clients]`` of all clients.
        """
        return None

    def require_clients(self, held: Mapping[str, str], weights: Mapping[str, float]) -> None:
        """Refuse clients that it cannot handle; held, weights: by name, domains, such as ``source``, and alpha_i."""

    def importance(self, server: State) -> Tensor | None:
        """Return the factors on the clients' fields in the next round, ``[..., clients]`` with mean 1; None for none.

        Client i then works on importance[i] f_i, and the mean over all clients is the weighted sum of their f_i.
        """
        return None

    def draws(self, t: int) -> bool:
        """Return whether clients are drawn by importance in round t (:func:`fedmm.core.federation.weighted_draw`).

        The more likely a client was to be drawn, the smaller the factor on its field, so that the mean stays the same
        in expectation.
        """
        return self.draws_by_importance

    def reports_only(self, t: int) -> bool:
        """Return whether clients send only their reports in round t; their steps must then leave them at z_0."""
        return False

    def scalar_weights(self, scalars: State) -> Tensor | None:
        """Like :meth:`client_weights`, from the clients' reports of the round, ``[..., clients]`` each."""
        return None

    def begin(self, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        """Return the client's state during a round's local steps: what it keeps, plus what only this round needs."""
        return client

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        """Return the client's next point from z, with the signed field F taken at z."""
        raise NotImplementedError

    def look(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        """Return the second point at which a local step from z needs the field, if the algorithm ``looks``."""
        raise NotImplementedError

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        """Return the client's next point and state; G is the field at the second point on the same batch, else F."""
        return self.local_step(z, sent, client, F, c), client

    @property
    def plain(self) -> bool:
        """Whether a local step is just ``local_step``: one field, and no state that changes with it."""
        kind = type(self)
        return kind.step is Algorithm.step and kind.begin is Algorithm.begin and not self.looks

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        """Return what the client uploads after its last local step, and its new state.

        The client keeps that state except for what ``begin`` added for this round.
        """
        return {"z": z}, client

    def report(self, loss: Tensor, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        """Return the numbers that a client sends with its upload, by the names in ``reports``, ``[...]`` each.

        loss: f_i ``[...]`` at the point where its local steps began, on the first step's batch; it includes the weight
        alpha_i but not the importance. z, client: as in :meth:`finish`.
        """
        return {"loss": loss}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        """Return the server's new state from the aggregated uploads; c has no client axis here."""
        return {"z": uploads.mean["z"]}

    def restored_client(self, sent: State, totals: State, c: Coefficients) -> State:
        """Return the state of a client that lost it, from the sums of its updates that the server has counted."""
        return self.init_client(sent["z"])


def first_exchange(algorithm: Algorithm, layout: Layout, z: Tensor) -> tuple[State, State]:
    """Return examples of what a client uploads and of what it keeps between rounds, for their names, shapes and dtypes.

    Both follow from the algorithm's methods, so nothing has to be declared. The values mean nothing.
    """
    c = Coefficients(algorithm.coefficients(layout, 0, 1), steps=layout.scalar(1))
    sent, own = algorithm.broadcast(algorithm.init_server(z)), algorithm.init_client(z)
    working = algorithm.begin(sent["z"], sent, own, c)
    upload, after = algorithm.finish(sent["z"], sent, working, c)
    return upload, {**own, **kept_of(own, working, after)}


def kept_of(own: State, working: State, after: State) -> State:
    """Return what a client keeps of its state after a round: all but what was added for this round's steps."""
    return {name: vector for name, vector in after.items() if name in own or name not in working}


def steps_in_mean(momentum: float, own: int) -> int:
    """Return :meth:`Algorithm.steps_told` of an algorithm that uploads a running mean over its steps with z.

    The last step has the weight 1 - m in it, and the first of a run m^(M - 1); comparison with z can take one step out.
    """
    largest = max(1 - momentum, momentum ** (own - 1))
    return max(1, min(own - 1, int(1 / largest)))


_MOST_STEPS = 1_000_000


def check_local_steps(steps: LocalSteps) -> None:
    """Refuse numbers of local steps below 1 or unreasonably large."""
    if isinstance(steps, Mapping):
        require(bool(steps), "local_steps must name at least one client")
        for client, number in steps.items():
            _check_steps(f"local_steps.{client}", number)
    elif isinstance(steps, Sequence):
        require(bool(steps), "local_steps must hold a number for each client")
        for position, number in enumerate(steps):
            _check_steps(f"local_steps[{position}]", number)
    else:
        _check_steps("local_steps", steps)


def _check_steps(name: str, number: object) -> None:
    at_least(name, number, 1)
    require(isinstance(number, int) and number <= _MOST_STEPS, f"{name} must be at most {_MOST_STEPS}, not {number}")


def mean_steps(steps: LocalSteps) -> int:
    """Return the clients' mean number of local steps, rounded to a whole number."""
    if isinstance(steps, int):
        return steps
    numbers = list(steps.values() if isinstance(steps, Mapping) else steps)
    return round(sum(numbers) / len(numbers))


def steps_by_client(steps: LocalSteps, names: Sequence[str]) -> dict[str, int]:
    """Return M_i by client name; ``names`` are in the order in which the clients were listed."""
    if isinstance(steps, Mapping):
        for client in steps:
            if client not in names:
                raise unknown("client in local_steps", client, names)
        missing = [name for name in names if name not in steps]
        require(not missing, f"local_steps gives no number for client {missing[0]!r}" if missing else "")
        return {name: steps[name] for name in names}
    if isinstance(steps, Sequence):
        require(len(steps) == len(names), f"local_steps holds {len(steps)} numbers for {len(names)} clients")
        return dict(zip(names, steps, strict=True))
    return dict.fromkeys(names, steps)
