"""The terms on which clients take part in a federation, whatever the algorithm, and who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fedmm.core.aggregation import Aggregation, Mean
from fedmm.core.algorithm import Algorithm, first_exchange, steps_by_client
from fedmm.core.compression import ENCODINGS, Encoding
from fedmm.core.errors import require
from fedmm.core.mechanisms import ExactUpdate, GaussianUpdate, Transmission
from fedmm.core.problem import FederatedProblem
from fedmm.core.seeding import key
from fedmm.core.validation import flag, not_negative, one_of, within

OnBadUpdate = Literal["stop", "skip"]

MOST_SUMMED = 256
"""The maximum number of updates in a masked sum."""


@dataclass(frozen=True)
class Terms:
    """The terms on which clients take part.

    participation: the share of the clients that takes part in a round, at least one; seed and round decide which.
    on_bad_update: what to do about a non-finite update: ``stop`` ends the run, ``skip`` leaves the client out of the
        round. An update that is malformed or exceeds a bound is always left out.
    max_update_norm: an update z_i - z_0 with a larger norm is left out; 0 for no bound.
    max_update_ratio: so is one whose norm exceeds this multiple of the median in the client's group; 0 for no bound.
    aggregation: how the server combines the updates, within groups of clients that hold the same domains.
    transmission: how an update is clipped and noised before it is sent.
    restore: the server keeps the sum of each client's updates, so that a client that lost its state can recover it.
    uploads, broadcasts: the encoding of vectors: ``exact``, ``fp16`` or ``int8``.
    secure_sum: remote sites mask their updates, so that the server sees only their sum; in a single process, where
        there is nobody to hide them from, it changes nothing.
    """

    participation: float = 1.0
    on_bad_update: OnBadUpdate = "stop"
    max_update_norm: float = 0.0
    max_update_ratio: float = 0.0
    aggregation: Aggregation = field(default=Mean())
    transmission: Transmission = field(default=ExactUpdate())
    restore: bool = False
    uploads: Encoding = "exact"
    broadcasts: Encoding = "exact"
    secure_sum: bool = False

    def __post_init__(self) -> None:
        within("participation", self.participation, 0.0, 1.0)
        require(self.participation > 0, "participation must be above 0: at least one client must take part")
        one_of("on_bad_update", self.on_bad_update, ("stop", "skip"))
        not_negative("max_update_norm", self.max_update_norm)
        not_negative("max_update_ratio", self.max_update_ratio)
        require(
            self.max_update_ratio == 0 or self.max_update_ratio > 1,
            f"max_update_ratio must be above 1, or 0 for no bound, not {self.max_update_ratio!r}",
        )
        require(
            isinstance(self.aggregation, Aggregation),
            f"aggregation must be an instance such as fedmm.CoordinateMedian(), not {self.aggregation!r}",
        )
        require(
            isinstance(self.transmission, Transmission),
            f"transmission must be an instance such as fedmm.ClippedUpdate(1.0), not {self.transmission!r}",
        )
        flag("restore", self.restore)
        one_of("uploads", self.uploads, ENCODINGS)
        one_of("broadcasts", self.broadcasts, ENCODINGS)
        flag("secure_sum", self.secure_sum)
        if self.trusts_server:
            require(
                not self.aggregation.robust,
                f"aggregation must be the mean if noise is shared among the clients, not {self.aggregation.name}: "
                "another centre may move by more than one client's update",
            )
            require(
                not self.may_refuse,
                "no update may be left out because of its content if noise is shared among the clients: "
                "leave on_bad_update at 'stop', max_update_norm and max_update_ratio at 0",
            )
            require(
                self.uploads == "exact",
                f"uploads must be 'exact' if noise is shared among the clients, not {self.uploads!r}: codes of "
                "single updates are not a function of their noisy sum. Use trust = 'nobody' to code them; broadcasts "
                "may be coded with either",
            )

    @property
    def may_refuse(self) -> bool:
        """Whether a well-formed update can be left out."""
        return self.on_bad_update == "skip" or self.max_update_norm > 0 or self.max_update_ratio > 0

    @property
    def trusts_server(self) -> bool:
        """Whether the clients share the noise that hides them, so that the server sees more than others may."""
        return isinstance(self.transmission, GaussianUpdate) and self.transmission.trust == "server"

    @property
    def hides_updates(self) -> bool:
        """Whether noise or masks hide each client's update, so that nothing else about the client may be revealed."""
        return self.transmission.private or self.secure_sum

    def check_sum(self, problem: FederatedProblem, algorithm: Algorithm) -> None:
        """Refuse ``secure_sum`` if the server needs individual updates, or if sites send what masks do not hide."""
        if not self.secure_sum:
            return
        self.check_reports(algorithm)
        reads = {
            f"aggregation = {self.aggregation.name!r}": self.aggregation.robust,
            "on_bad_update = 'skip'": self.on_bad_update == "skip",
            "max_update_norm": self.max_update_norm > 0,
            "max_update_ratio": self.max_update_ratio > 0,
            "restore": self.keeps_totals(algorithm),
        }
        if client_weights(problem, algorithm) is not None:
            reads["normalize_steps"] = True
        for option in (name for name, looks in reads.items() if looks):
            require(False, f"with secure_sum the server sees only the sum of updates, and {option} needs each of them")
        require(
            self.uploads == self.broadcasts == "exact",
            "secure_sum needs uploads and broadcasts to be 'exact': codes of single updates are not a function of "
            "their sum, and masks assume that all clients were sent the same point",
        )
        require(
            not (problem.share_statistics and problem.statistics),
            "secure_sum hides updates, and running statistics of batch normalisation would travel beside them; use a "
            "network without them, or batch_norm = 'frozen'",
        )
        clients = max(problem.federation, len(problem.clients))
        require(clients <= MOST_SUMMED, f"secure_sum takes at most {MOST_SUMMED} clients, not {clients}")

    def check_reports(self, algorithm: Algorithm) -> None:
        """Refuse algorithms whose clients report numbers if noise or masks are to hide individual clients."""
        if not algorithm.reports:
            return
        what = f"its clients report their {' and '.join(map(repr, algorithm.reports))}"
        alone = "use an algorithm that sends only z, such as fedmm"
        require(
            not self.transmission.private,
            f"updates cannot carry noise with {algorithm.name}: {what}, which the noise on z does not hide; {alone}",
        )
        require(
            not self.secure_sum,
            f"secure_sum cannot hide updates with {algorithm.name}: {what}, one by one; {alone}",
        )

    def require_plain(self, engine: str) -> None:
        """Refuse ``secure_sum`` for an engine that shows its server every update."""
        require(
            not self.secure_sum,
            f"secure_sum hides updates in a federation of sites (fedmm deploy); the engine {engine!r} shows its server "
            "every one, so leave it out",
        )

    def check_noise(self, problem: FederatedProblem, algorithm: Algorithm) -> None:
        """Refuse noise that would not give the privacy that is reported; docs/privacy.md has the proof.

        For shared noise, updates may depend on earlier noise only through the broadcasts, but what a client keeps
        between rounds contains the noise of its own earlier updates, which nobody else has seen.

        Only z is noised, whoever is trusted, so nothing else that comes from the local steps may be sent.
        """
        self.check_reports(algorithm)
        require(
            not (self.transmission.private and algorithm.draws_by_importance),
            f"updates cannot carry noise with {algorithm.name}: the privacy of noise is known for uniformly drawn "
            "clients, and this algorithm draws them by weight; use an algorithm such as fedmm",
        )
        if self.transmission.private and not algorithm.plain:
            upload, _ = first_exchange(algorithm, problem.layout, problem.start)
            require(
                upload.keys() == {"z"},
                f"updates cannot carry noise with {algorithm.name}: its clients also send "
                f"{' and '.join(repr(name) for name in sorted(upload) if name != 'z')}, which the noise on z does not "
                "hide; use an algorithm that sends only z, such as fedmm",
            )
        if not self.trusts_server:
            return
        clients = max(problem.federation, len(problem.clients))
        require(
            head_count(clients, self.participation) > 1,
            "noise can only be shared if at least two clients take part in a round",
        )
        require(
            client_weights(problem, algorithm) is None,
            "noise can only be shared if updates have equal weight, and normalize_steps gives some more than others; "
            "use trust = 'nobody', or equal local_steps",
        )
        upload, kept = first_exchange(algorithm, problem.layout, problem.start)
        require(
            upload.keys() == {"z"},
            f"noise can only be shared if clients send only their points; {algorithm.name} sends more, "
            "so use trust = 'nobody'",
        )
        require(
            not kept,
            f"noise can only be shared if clients keep nothing between rounds; those of {algorithm.name} keep "
            f"{' and '.join(map(repr, sorted(kept)))}, which takes the noise of earlier rounds back out of later ones. "
            "Use trust = 'nobody', or an algorithm whose clients keep nothing, such as fedavg_gda",
        )

    def keeps_totals(self, algorithm: Algorithm) -> bool:
        """Return whether the server keeps the sum of each client's updates."""
        return bool(algorithm.accumulates) and (self.restore or self.aggregation.robust)

    def structure(self) -> Terms:
        """Return the terms that stacked runs must share: all but the participation."""
        return replace(self, participation=1.0)


def client_weights(problem: FederatedProblem, algorithm: Algorithm) -> Tensor | None:
    """Return the factor on each client's update before the mean, ``[clients]`` ordered by name; None if all are 1."""
    names = [client.name for client in problem.clients]
    by_name = steps_by_client(algorithm.steps, problem.listed or names)
    layout = problem.layout
    steps = torch.tensor([by_name[name] for name in sorted(names)], dtype=layout.dtype, device=layout.device)
    weights = algorithm.client_weights(steps)
    return None if weights is None or bool((weights == 1).all()) else weights


def head_count(clients: int, share: float) -> int:
    """Return how many of ``clients`` clients take part in a round: their share, rounded, at least one."""
    return max(1, int(share * clients + 0.5))


def taking_part(names: Sequence[str], share: float, seed: int, t: int) -> list[str]:
    """Return the sorted names of the clients in round t: a function of seed, round, names and share alone."""
    if share >= 1.0:
        return sorted(names)
    drawn = sorted(names, key=lambda name: (key(seed, "participation", t, name), name))
    return sorted(drawn[: head_count(len(names), share)])


def draw_order(names: Sequence[str], seed: int, t: int) -> tuple[list[int], float]:
    """Return what decides a weighted draw in round t: a random order of the clients and a number in [0, 1)."""
    places = sorted(range(len(names)), key=lambda i: (key(seed, "participation", t, names[i]), names[i]))
    return places, key(seed, "draw", t) / (1 << 63)


def weighted_draw(importance: Tensor, count: Tensor, order: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return which clients are drawn by importance, bool ``[..., clients]``, and the factors on their fields, likewise.

    importance: N lambda_i, at least 0 with mean 1, ``[..., clients]``. count: how many to draw, ``[..., 1]``.
    order, start: from :func:`draw_order`, ``[..., clients]`` and ``[..., 1]``.

    Systematic sampling without replacement: client i is drawn with probability p_i = min(1, s lambda_i), with s such
    that the p_i sum to count, and its field has the factor count lambda_i / p_i. So the mean over the drawn clients is,
    in expectation, the sum of lambda_i F_i. All factors are 1 if no p_i is 1, and N lambda_i if everyone takes part.
    """
    clients = importance.shape[-1]
    count, start = count.double(), start.double()
    share = importance.double() / clients
    mass = share.clamp_min(_NEVER_QUITE)  # so that `count` clients can always be drawn
    ordered = mass.sort(dim=-1, descending=True).values
    left = count - torch.arange(clients, device=mass.device)
    scales = left / ordered.flip(-1).cumsum(dim=-1).flip(-1)
    certain = (scales * ordered > 1).sum(dim=-1, keepdim=True).clamp_max(clients - 1)
    chance = (scales.gather(-1, certain) * mass).clamp_max(1.0)
    until = chance.gather(-1, order).cumsum(dim=-1)
    until = torch.cat([torch.zeros_like(until[..., :1]), until[..., :-1], count.expand_as(until[..., :1])], dim=-1)
    hits = (until - start).ceil()
    drawn = torch.zeros_like(chance, dtype=torch.bool).scatter(-1, order, hits[..., 1:] > hits[..., :-1])
    return drawn, (count * share / chance).to(importance.dtype)


_NEVER_QUITE = 1e-12
