"""By what a model can be chosen: the columns of a history, which way each is better, and what it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedmm.core.errors import FedmmError, unknown

ORACLE = "oracle_"
"""What the name of a choice with target labels begins with, and of every file and key that comes of it."""


@dataclass(frozen=True)
class Validator:
    """A criterion of choice.

    column: of the history. higher: whether more is better. needs: what must be there. sends: what leaves a client.
    reference: where it is from. oracle: whether it looks at target labels, which nobody has who needs to choose.
    """

    name: str
    column: str
    higher: bool
    needs: str
    sends: str
    reference: str
    oracle: bool = False

    def better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Whether a value is better than another, by more than so much; any number is better than none."""
        if not math.isfinite(value):
            return False
        return than is None or ((value - than) if self.higher else (than - value)) > by


_TARGET = "target inputs of the clients (run.probe_rows above 0)"
_ASIDE = "labelled source rows set aside (source_validation, or validation_rows in a site's file)"
_PSI = "an adversary that tells domains (dann, cdan)"

VALIDATORS: dict[str, Validator] = {
    each.name: each
    for each in (
        Validator(
            "target_information", "target_information", True, _TARGET,
            "the sum of its predictions and of their entropies: classes + 1 numbers", "Bridle et al. 1991",
        ),
        Validator(
            "target_entropy", "target_entropy", False, _TARGET, "the sum of its predictions' entropies: 1 number",
            "Morerio et al. 2018",
        ),
        Validator(
            "target_bnm", "target_bnm", True, f"{_TARGET}, at most 256 classes",
            "the sum of p p^T over its predictions p: classes x classes numbers", "Cui et al. 2020",
        ),
        Validator(
            "target_snd", "target_snd", True, _TARGET,
            "the sum of its neighbourhoods' entropies and their count: 2 numbers", "Saito et al. 2021",
        ),
        Validator("source_risk", "source_risk", False, _ASIDE, "the sum of its losses: 1 number", "cross entropy"),
        Validator(
            "dev_risk", "dev_risk", False, f"{_ASIDE} and {_PSI}", "five sums of weights and losses",
            "You et al. 2019",
        ),
        Validator(
            "source_accuracy", "source_accuracy", True, "labelled source test rows", "the count of its hits: 1 number",
            "accuracy",
        ),
        Validator(
            "domain_accuracy", "domain_accuracy", False, f"{_TARGET} and {_PSI}",
            "the count of rows whose domain is told: 1 number", "balanced accuracy",
        ),
        Validator(
            "proxy_a_distance", "proxy_a_distance", False, f"{_TARGET} and {_PSI}",
            "the count of rows whose domain is told: 1 number", "Ben-David et al. 2006",
        ),
        Validator(
            f"{ORACLE}target_accuracy", "target_accuracy", True, "labelled target rows",
            "the count of its hits: 1 number", "accuracy", oracle=True,
        ),
    )
}  # fmt: skip


def validator(name: str, option: str) -> Validator:
    """The validator of that name, for an option such as ``best_by``; a choice with target labels must say so."""
    if name in VALIDATORS:
        return VALIDATORS[name]
    oracle = next((each for each in VALIDATORS.values() if each.oracle and each.column == name), None)
    if oracle is not None:
        raise FedmmError(
            f"{option} = {name!r} would choose with target labels; say {option} = {oracle.name!r} if that is meant"
        )
    raise unknown(option, name, VALIDATORS)
