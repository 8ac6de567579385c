"""Drawing a round's clients and their weights, and collecting the numbers they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, State
from fedmm.core.compression import algorithms_part
from fedmm.core.engine import FederatedState
from fedmm.core.errors import require
from fedmm.core.federation import draw_order, head_count, taking_part, weighted_draw
from fedmm.core.layout import Layout
from fedmm.engines.messages import NEVER, Update


def require_per_client(algorithm: Algorithm, clients: int, start: Tensor) -> State:
    """Return the server's initial per-client numbers; refuse a wrong shape, dtype or a name used twice."""
    own = algorithm.init_per_client(clients, start)
    for name, numbers in own.items():
        require(
            numbers.shape == (*start.shape[:-1], clients) and numbers.dtype == start.dtype,
            f"{algorithm.name} must give init_per_client's {name!r} the shape [..., clients] and dtype {start.dtype}",
        )
        require(
            name not in algorithm.init_server(start), f"{algorithm.name} has two {name!r} in the state of its server"
        )
    return own


def draw_clients(
    algorithm: Algorithm, names: Sequence[str], share: float, seed: int, state: FederatedState
) -> dict[str, float | None]:
    """Return the next round's clients in order of name, with the factor on each one's field (None for no factor).

    In the second round of a pair, only clients counted in the first take part. share: fraction of clients to draw.
    """
    t = state.round
    importance = algorithm.importance(algorithms_part(state.server))
    if importance is not None and algorithm.draws(t) and share < 1.0:
        order, start = draw_order(names, seed, t)
        count = torch.tensor([head_count(len(names), share)])
        numbers = importance.cpu()
        drawn, weights = weighted_draw(numbers, count, torch.tensor(order), torch.tensor([start]).double())
        triples = zip(names, drawn.tolist(), weights.tolist(), strict=True)
        return {name: weight for name, takes_part, weight in triples if takes_part}
    second = algorithm.ends_pair(t)
    drawn_in = t - 1 if second else t
    present = taking_part(names, share, seed, drawn_in)
    if second:
        present = [name for name in present if state.counted.get(name, NEVER) == drawn_in]
    if importance is None:
        return dict.fromkeys(present)
    weight = dict(zip(names, importance.tolist(), strict=True))
    return {name: weight[name] for name in present}


def collect_reports(
    algorithm: Algorithm, names: Sequence[str], accepted: Mapping[str, Update], layout: Layout
) -> tuple[State, Tensor]:
    """Return the reported numbers by name (0 if not counted) and who was counted (bool), ``[clients]`` each."""
    numbers = {
        report: [accepted[name].scalars[report] if name in accepted else 0.0 for name in names]
        for report in algorithm.reports
    }
    scalars = {
        report: torch.tensor(values, dtype=layout.dtype, device=layout.device) for report, values in numbers.items()
    }
    return scalars, torch.tensor([name in accepted for name in names], device=layout.device)
