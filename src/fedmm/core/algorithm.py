"""What a federated minimax algorithm is: a frozen set of hyperparameters with pure methods over flat vectors.

One round, as every engine runs it (z has shape ``[size]`` for one client, or any leading axes for a stack)::

    server = algorithm.init_server(z)                      # once
    client = algorithm.init_client(z)                      # once, stays with the client
    c = algorithm.coefficients(layout, t, rounds)          # tensors, so that a stack may differ in them
    sent = algorithm.broadcast(server)
    z = sent["z"]
    repeat local_steps times: z = algorithm.local_step(z, sent, client, F_i(z), c)
    upload, client = algorithm.finish(z, sent, client, c)
    server = algorithm.server_update(server, the mean of the uploads and what it adds to the clients' sums, c)

F_i(z) = (df_i/d omega, -df_i/d psi) is the signed field: descending it is descent in omega and ascent in psi.

A method whose steps need more writes ``step`` instead of ``local_step``. The vectors of its client may then change with
every step, and it may look at the field a second time, on the same batch::

    client = algorithm.begin(z, sent, client, c)           # the client's vectors, and those of this round alone
    repeat local_steps times:
        F = F_i(z)
        G = F_i(algorithm.look(z, sent, client, F, c))     # where the algorithm looks, else F
        z, client = algorithm.step(z, sent, client, F, G, c)
    upload, client = algorithm.finish(z, sent, client, c)

A method that needs the mean field at the server's point before its local steps has them ``in_pairs``
with the same clients. In the first of them each takes one step, so that the mean of what they send tells the mean
field; in the second, those whose first was counted go on. ``finish`` keeps what a client needs of the first.

A method whose server sets weights of its clients has a number for each of them in its state, hears a number from each,
and says what each one's field is multiplied with::

    server = {**algorithm.init_server(z), **algorithm.init_per_client(clients, z)}
    weights = algorithm.importance(server)                 # client i works with weights[i] F_i, mean 1
    numbers = algorithm.report(f_i(z_0), z, sent, client, c)     # of each client, beside its upload
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
"""Named vectors of shape ``[..., size]``: what a server or a client keeps, or what travels between them."""

LocalSteps = int | Sequence[int] | Mapping[str, int]
"""The paper's M_i: one number for all clients, one per client in the order they are listed, or one per client name."""


class Aggregated(NamedTuple):
    """What a server has of a round: named vectors ``[..., size]``.

    mean: of the uploads that were counted in the round.
    gain: what the round adds to the mean over *all* clients, present or not, of the sums of their updates, for the
        names that the algorithm ``accumulates``. An update is an upload less what was sent under its name (z_i - z_0),
        or the upload itself where nothing was. With all clients present it is their mean update.
    scalars: what the clients report by name, ``[..., clients]`` over all of them in order of their names, 0 for those
        who were not counted. counted: bool ``[..., clients]``; target: bool ``[..., clients]``, who holds target rows.
        Both are None if the algorithm has no reports.
    """

    mean: State
    gain: State
    scalars: State = {}  # noqa: RUF012 - never written to
    counted: Tensor | None = None
    target: Tensor | None = None


class Coefficients(dict[str, Tensor]):
    """The hyperparameters of one round as tensors, each a scalar or one value per coordinate; ``c.lr`` is ``c["lr"]``.

    An engine adds ``steps``, the client's number of local steps M_i.
    """

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Algorithm:
    """The base of all algorithms: a subclass states its hyperparameters and what differs from plain averaging.

    lr_min, lr_max: eta_1 for omega, eta_2 for psi; each one number or one per group of parameters. A learning rate
        multiplies the whole bracket of a local step.
    lr_schedule: a factor on both over the rounds: a schedule such as ``DannDecay()``, or its name.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    accumulates: ClassVar[tuple[str, ...]] = ()
    """Uploads of which ``server_update`` needs the gain: what clients add up on their side, the server does too."""
    looks: ClassVar[bool] = False
    """Whether a local step needs the field at a second point, which :meth:`look` gives."""
    in_pairs: ClassVar[bool] = False
    """Whether rounds come in pairs: one step, by which all learn the mean field, then the other steps."""
    weighs_clients: ClassVar[bool] = False
    """Whether it goes for another mixture of the clients than their mean, and so to another saddle."""
    restrains: ClassVar[bool] = False
    """Whether features are restrained, as by :meth:`fedmm.core.objective.Objective.restrain`."""
    reports: ClassVar[tuple[str, ...]] = ()
    """The numbers that :meth:`report` has each client send beside its upload."""
    draws_by_importance: ClassVar[bool] = False
    """Whether clients are drawn by their :meth:`importance` in the rounds of :meth:`draws`, not uniformly."""

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
        """M_i as it was given; 1 for an algorithm without the option."""
        return getattr(self, "local_steps", 1)

    @property
    def step_schedule(self) -> StepSchedule | None:
        """The number of local steps of each round, if it differs between rounds."""
        return PairedSteps() if self.in_pairs else None

    def steps_in(self, own: int, seed: int, t: int) -> int:
        """The local steps in round t of a client that has its ``own`` number M_i. seed: the run's."""
        return self.step_schedule.steps(own, seed, t) if self.step_schedule else own

    def most_steps(self, own: int) -> int:
        """The most local steps of any round of a client that has its ``own`` number M_i."""
        return self.step_schedule.most(own) if self.step_schedule else own

    def steps_told(self, own: int) -> int:
        """How many local steps are mixed in what a client sends of a round, at least. own: its number M_i.

        A site may ask for several, so that no step's gradient can be read off.
        """
        return 1 if self.step_schedule else own

    def ends_pair(self, t: int) -> bool:
        """Whether only clients that were counted in the round before take part in round t (from 0)."""
        return self.in_pairs and t % 2 == 1

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        """The hyperparameters in round t (from 0) as tensors."""
        schedule = as_schedule("lr_schedule", self.lr_schedule)
        return Coefficients(lr=layout.join(self.lr_min, self.lr_max) * schedule(t, rounds))

    def init_server(self, z: Tensor) -> State:
        """The server's state at the start; ``z`` is always in it."""
        return {"z": z}

    def init_client(self, z: Tensor) -> State:
        """A client's own state at the start; it never leaves the client."""
        return {}

    def init_per_client(self, clients: int, like: Tensor) -> State:
        """The server's numbers of each client at the start, ``[..., clients]`` in order of their names.

        They become part of its state and are never sent. like: ``[..., size]``, of the right dtype and leading axes.
        """
        return {}

    def structure(self) -> tuple[object, ...]:
        """What else algorithms of one class must share to compute side by side; the rest is in coefficients."""
        return ()

    def broadcast(self, server: State) -> State:
        """What the server sends to every client."""
        return server

    def client_weights(self, steps: Tensor) -> Tensor | None:
        """What each client's z_i - z_0 is multiplied with before the mean, ``[..., clients]``; None leaves them alone.

        steps: M_i ``[..., clients]`` of all clients.
        """
        return None

    def require_clients(self, held: Mapping[str, str], weights: Mapping[str, float]) -> None:
        """Refuse clients that it cannot work with, by name: what each holds, as ``source``, and its weight alpha_i."""

    def importance(self, server: State) -> Tensor | None:
        """What each client's field is multiplied with in the next round, ``[..., clients]`` with mean 1; None for none.

        Client i then works on importance[i] f_i, and the mean over all clients is the weighted sum of their f_i.
        """
        return None

    def draws(self, t: int) -> bool:
        """Whether the clients of round t are drawn by their importance (:func:`fedmm.core.federation.weighted_draw`).

        A client's field is then multiplied with less, the likelier it was drawn: the mean stays the same, in
        expectation.
        """
        return self.draws_by_importance

    def reports_only(self, t: int) -> bool:
        """Whether clients send only their reports in round t; their steps must then leave them at z_0."""
        return False

    def scalar_weights(self, scalars: State) -> Tensor | None:
        """As :meth:`client_weights`, from what the clients reported in the round, ``[..., clients]`` each."""
        return None

    def begin(self, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        """The client's state in the local steps of a round: what it keeps, and what only this round's steps need."""
        return client

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        """The client's next point from z, with the signed field F taken at z."""
        raise NotImplementedError

    def look(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        """The second point at which a local step from z needs the field, where the algorithm ``looks``."""
        raise NotImplementedError

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        """The client's next point and state; G is the field at the second point on the same batch, else F."""
        return self.local_step(z, sent, client, F, c), client

    @property
    def plain(self) -> bool:
        """Whether a local step is ``local_step`` and nothing else: one field, and no state that changes with it."""
        kind = type(self)
        return kind.step is Algorithm.step and kind.begin is Algorithm.begin and not self.looks

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        """What the client uploads after its last local step, and its new state.

        It keeps that state except for what ``begin`` added for this round.
        """
        return {"z": z}, client

    def report(self, loss: Tensor, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        """The numbers that a client sends beside its upload, by the names in ``reports``, ``[...]`` each.

        loss: f_i ``[...]`` at the point where its local steps began, on the batch of the first; its weight alpha_i is
        in it, its importance is not. z, client: as :meth:`finish` has them.
        """
        return {"loss": loss}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        """The server's new state from the aggregated uploads; c has no client axis here."""
        return {"z": uploads.mean["z"]}

    def restored_client(self, sent: State, totals: State, c: Coefficients) -> State:
        """The state of a client that lost it, from the sums of its updates that the server has counted."""
        return self.init_client(sent["z"])


def first_exchange(algorithm: Algorithm, layout: Layout, z: Tensor) -> tuple[State, State]:
    """What a client uploads, and what it keeps between rounds: their names, shapes and dtypes; the values mean nothing.

    Both follow from the algorithm's methods, so that there is nothing to declare.
    """
    c = Coefficients(algorithm.coefficients(layout, 0, 1), steps=layout.scalar(1))
    sent, own = algorithm.broadcast(algorithm.init_server(z)), algorithm.init_client(z)
    working = algorithm.begin(sent["z"], sent, own, c)
    upload, after = algorithm.finish(sent["z"], sent, working, c)
    return upload, {**own, **kept_of(own, working, after)}


def kept_of(own: State, working: State, after: State) -> State:
    """What a client keeps of its state after a round: all but what was added for the steps of the round alone."""
    return {name: vector for name, vector in after.items() if name in own or name not in working}


def steps_in_mean(momentum: float, own: int) -> int:
    """How many of a round's steps are mixed where their running mean is sent beside z: :meth:`Algorithm.steps_told`.

    The last has the share 1 - m and the first of a run m^(M - 1); what is sent beside it can take one step out.
    """
    largest = max(1 - momentum, momentum ** (own - 1))
    return max(1, min(own - 1, int(1 / largest)))


_MOST_STEPS = 1_000_000


def check_local_steps(steps: LocalSteps) -> None:
    """Refuse a number of local steps below 1 or beyond reason, for whichever client it is meant."""
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
    """The clients' mean number of local steps, to the nearest whole one."""
    if isinstance(steps, int):
        return steps
    numbers = list(steps.values() if isinstance(steps, Mapping) else steps)
    return round(sum(numbers) / len(numbers))


def steps_by_client(steps: LocalSteps, names: Sequence[str]) -> dict[str, int]:
    """M_i for each client name; ``names`` are in the order in which the clients were listed."""
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
