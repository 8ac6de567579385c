"""``fedmm privacy``: what an experiment's noise is worth, before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedmm.config.schema import experiment
from fedmm.core.errors import FedmmError
from fedmm.core.federation import head_count
from fedmm.runs.build import DataCache, prepare


def tell_privacy(tables: Mapping[str, Any], epsilon: float, say: Callable[[str], None]) -> None:
    """Say which epsilon an experiment would reach, and with ``epsilon`` above 0 the noise that would keep it."""
    resolved = experiment(tables)
    account = prepare(resolved, DataCache()).account
    if account is None:
        raise FedmmError("there is nothing to tell without noise: set transmission.name to 'gaussian'")
    rounds, sample = resolved.run.rounds, head_count(len(account.clients), account.share)
    spent = account.spent([sample] * rounds)
    known = replace(account, secret_sample=False).spent([sample] * rounds)
    behind = "hidden from the server and all others" if account.noise.trust == "nobody" else "hidden from all others"
    say(f"{len(account.clients)} clients, {sample} in a round, {rounds} rounds; a client is {behind}")
    say(f"epsilon {spent:.4g} with delta {account.noise.delta:g} after the last round")
    if known > spent:
        say(f"epsilon {known:.4g} if others learn who takes part, as the sites of a deployment do")
    if epsilon:
        noise = account.noise_for(epsilon, rounds)
        say(f"epsilon {epsilon:g} is kept with transmission.noise_min = transmission.noise_max = {noise:.4g}")
