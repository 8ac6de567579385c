"""How often the rule on adapting was right where target labels could tell: the counts of benchmarks/verdicts.py."""

from __future__ import annotations

from typing import NamedTuple


class Count(NamedTuple):
    """In how many comparisons a verdict was given, and in how many of these adapting had helped."""

    given: int
    helped: int


SUPPORTED, NOT_SUPPORTED, UNJUDGED = Count(8, 5), Count(37, 17), Count(18, 11)
"""Of both parts of benchmarks/results/verdicts.json: of each verdict, by what ``Verdict.supported`` says: True, False,
None."""
DATA = "digits, two moons and tables"
"""What was compared there."""


def tell_record(
    supported: bool | None,
    yes: Count = SUPPORTED,
    no: Count = NOT_SUPPORTED,
    unjudged: Count = UNJUDGED,
) -> str:
    """How far a verdict may be believed, by how often it was right: the end of a sentence."""
    total = yes.given + no.given + unjudged.given
    where = f"in our {total} comparisons with source only on {DATA}"
    if supported is None:
        right = yes.helped + no.given - no.helped
        return (
            f"{where} the rule judged {yes.given + no.given}, and was right in {right} of these; of the "
            f"{unjudged.given} that it could not judge adapting had helped in {unjudged.helped}"
        )
    where += f", of which the rule could not judge {unjudged.given},"
    if not supported:
        return f"{where} adapting had not helped in {no.given - no.helped} of the {no.given} that it did not support"
    if not yes.given:
        return f"{where} it never supported adapting, so how often that is right is not known"
    return f"{where} adapting had helped in {yes.helped} of the {yes.given} that it supported"
