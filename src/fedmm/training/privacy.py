"""Privacy accounting: the client-level (epsilon, delta) that noise in updates achieves, round by round.

Two federations are neighbours if they differ in all the data of one client; the number of clients is public. A part of
an update that is clipped to norm C then differs by at most 2 C, so noise of standard deviation s C on it is a Gaussian
mechanism with multiplier s / 2. docs/privacy.md derives what is computed here, and says what it does not cover.
Only this module imports dp-accounting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.errors import FedmmError, require
from fedmm.core.federation import Terms, head_count, taking_part
from fedmm.core.mechanisms import GaussianUpdate
from fedmm.core.objective import Objective
from fedmm.core.problem import FederatedProblem
from fedmm.core.validation import positive
from fedmm.data.domains import Input
from fedmm.training.callbacks import Callback
from fedmm.training.history import History, Value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LEAST, _MOST, _PRECISION = 1e-3, 1e6, 1e-3


@dataclass(frozen=True)
class PrivacyAccount:
    """Computes the privacy that a federation's noise achieves.

    clients: the names of all clients. share, seed: decide who takes part in a round. in_pairs: rounds come in pairs
    with the same clients. groups: whether there is an omega, and a psi.
    secret_sample: only a trusted server knows who takes part in a round.
    """

    noise: GaussianUpdate
    clients: tuple[str, ...]
    share: float = 1.0
    seed: int = 0
    groups: tuple[bool, bool] = (True, True)
    secret_sample: bool = True
    in_pairs: bool = False

    def __post_init__(self) -> None:
        _library()

    def spent(self, counted: Sequence[int]) -> float:
        """Return epsilon, of omega and psi together. counted: for each round, how many clients were counted.

        Neither has an epsilon of its own: the next round's omega depends on this round's psi at every client.
        If nobody is trusted, a client's update costs privacy whether it is counted or not.
        """
        both = (self.noise.noise_min / 2, self.noise.noise_max / 2)
        return self._epsilon([rate for rate, group in zip(both, self.groups, strict=True) if group], counted)

    def noise_for(self, epsilon: float, rounds: int) -> float:
        """Return the smallest noise_min = noise_max that keeps within ``epsilon`` over this many rounds."""
        positive("epsilon", epsilon)
        usual = [head_count(len(self.clients), self.share)] * rounds

        def kept(noise: float) -> bool:
            return self._epsilon([noise / 2] * sum(self.groups), usual) <= epsilon

        low, high = _LEAST, _MOST
        require(kept(high), f"no noise up to {_MOST:g} keeps epsilon {epsilon:g} over {rounds} rounds")
        while high > low * (1 + _PRECISION):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if kept(middle) else (middle, high)
        return high

    def _epsilon(self, multipliers: Sequence[float], counted: Sequence[int]) -> float:
        """Return epsilon of noises with these multipliers, each on a separate vector.

        Together they hide a client like one noise with the sum of their precisions. If others may know who takes part,
        what matters is how often a client does; if only the server knows, that every round has a sample of clients.
        """
        rounds = {1.0: len(counted)} if counted else {}  # number of rounds, by the factor on their noise
        if self.noise.trust == "server":
            usual = head_count(len(self.clients), self.share)
            rounds = {math.sqrt((many - 1) / (usual - 1)): n for many, n in Counter(counted).items() if many}
        updates = _attendance(self.clients, self.share, self.seed, self.in_pairs).most(len(counted))
        if not rounds:
            return 0.0
        if not min(rounds):
            return math.inf
        precision = sum(1 / multiplier**2 for multiplier in multipliers)
        alike = min(rounds) / math.sqrt(updates * precision)
        known = gaussian_epsilon(alike, self.noise.delta)
        everyone, sample = len(self.clients), head_count(len(self.clients), self.share)
        if self.noise.trust == "nobody" or sample == everyone or not self.secret_sample:
            return known
        renyi = sum(
            number * _sampled_renyi(everyone, sample, times / math.sqrt(precision)) for times, number in rounds.items()
        )
        return min(known, _from_renyi(renyi, self.noise.delta))


class EpsilonColumn(Callback):
    """Adds ``epsilon``, the privacy cost so far, to every row."""

    def __init__(self, account: PrivacyAccount) -> None:
        self._account = account

    def begin(self, state: FederatedState, history: History) -> None:
        self._counted = [int(many or 0) for many in history["clients"]]

    def wants_state(self, round_: int) -> bool:
        return False

    def columns(self, record: RoundRecord) -> dict[str, Value]:
        self._counted.append(record.clients)
        return {"epsilon": self._account.spent(self._counted)}


class _Attendance:
    """Counts how often clients take part."""

    def __init__(self, draw: Callable[[int], Sequence[str]]) -> None:
        self._draw = draw
        self._times: Counter[str] = Counter()
        self._most = [0]

    def most(self, rounds: int) -> int:
        """Return how many of the first ``rounds`` rounds the most frequent client took part in."""
        while len(self._most) <= rounds:
            self._times.update(self._draw(len(self._most) - 1))
            self._most.append(max(self._times.values()))
        return self._most[rounds]


@cache
def _attendance(clients: tuple[str, ...], share: float, seed: int, in_pairs: bool) -> _Attendance:
    return _Attendance(lambda t: taking_part(clients, share, seed, t - t % 2 if in_pairs else t))


def privacy_account(
    terms: Terms, problem: FederatedProblem, algorithm: Algorithm | None = None
) -> PrivacyAccount | None:
    """Return the privacy account of a federation; None if its updates carry no noise."""
    if not isinstance(terms.transmission, GaussianUpdate):
        return None
    layout = problem.layout
    return PrivacyAccount(
        terms.transmission,
        tuple(sorted(client.name for client in problem.clients)),
        terms.participation,
        problem.seed,
        (layout.min_size > 0, layout.size > layout.min_size),
        in_pairs=algorithm is not None and algorithm.in_pairs,
    )


def require_nothing_else_is_told(
    *, probe_rows: int, centre: str, trains_statistics: bool, objective: Objective | None = None
) -> None:
    """Refuse whatever would reveal clients' rows without noise, beside their updates."""
    require(
        probe_rows == 0,
        "probe_rows must be 0 if updates carry noise: metrics on the clients' own rows carry none",
    )
    require(
        centre != "train_mean",
        "centre must be 'none' or 'image_mean' if updates carry noise: the mean of the clients' inputs has none",
    )
    if objective is not None:
        require_no_counts(objective)
    require(
        not trains_statistics,
        "batch_norm must be 'frozen' if updates carry noise: the running statistics have none",
    )


def require_no_counts(objective: Objective) -> None:
    """Refuse an objective that needs the clients' class counts."""
    require(
        not objective.needs_class_shares,
        f"{objective.name} needs the clients' class counts, which carry no noise; if updates carry noise, set "
        "objective.positive_share (auc) or class_weights = 'none' (source_only)",
    )


def require_no_guard(terms: Terms, *, guarded: bool) -> None:
    """Refuse a guard if noise is shared among clients or masks hide updates: it looks at single updates."""
    require(
        not (guarded and terms.trusts_server),
        "guard.policy must be 'off' if clients share the noise: a guard looks at single updates",
    )
    require(
        not (guarded and terms.secure_sum),
        "guard.policy must be 'off' with secure_sum: a guard looks at single updates",
    )


def require_nothing_learnt(terms: Terms, given: Input | None) -> None:
    """Refuse rows that were preprocessed with statistics of all clients' rows."""
    if terms.transmission.private and given is not None:
        require(
            not given.learnt,
            f"the data set {given.name!r} uses means, deviations and words of the clients' rows, which carry no noise "
            "although the updates do; use 'arrays' with standardise = false",
        )


def _library() -> Any:
    try:
        import dp_accounting  # noqa: PLC0415 - an extra, and slow to import
        import dp_accounting.rdp  # noqa: PLC0415
    except ImportError as problem:
        raise FedmmError("noise in updates needs dp-accounting: pip install 'fedmm[privacy]'") from problem
    return dp_accounting


@cache
def _sampled_renyi(clients: int, sample: int, multiplier: float) -> NDArray[np.float64]:
    """Return the Renyi divergences, at the library's orders, of one round with a sample that only the server knows.

    Any other client knows whether it is in the sample; if it is not, the sample is drawn from ``clients - 1`` clients.
    """
    library = _library()
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    event = library.GaussianDpEvent(multiplier)
    accountant.compose(library.SampledWithoutReplacementDpEvent(clients - 1, sample, event))
    renyi: NDArray[np.float64] = accountant.rdp
    return renyi


@lru_cache(1000)
def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Return epsilon at delta of Gaussian noise that is ``multiplier`` times the distance of two neighbours."""
    import numpy as np  # noqa: PLC0415 - comes with the library

    with np.errstate(divide="ignore"):  # the library takes the logarithm of a delta that is 0
        return float(_library().get_epsilon_gaussian(multiplier, delta))


def _from_renyi(renyi: Any, delta: float) -> float:
    library = _library()
    epsilon, _ = library.rdp.compute_epsilon(library.rdp.RdpAccountant().orders, renyi, delta)
    return float(epsilon)
