"""Masked sums: exact, the same whatever the masks are, with sites that are away, and one update that stays hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import FLOAT64, generator, played, random_game, with_options
from remote.masked import RUN, Sites, masked_engine

from fedmm import ALGORITHMS, CoordinateMedian, FedAvgGDA, FedMM, FedmmError, Terms
from fedmm.core.algorithm import Algorithm
from fedmm.engines.in_process import InProcess
from fedmm.engines.mask_ledger import MaskLedger
from fedmm.engines.masking import (
    LARGEST,
    MASKED,
    STEP,
    Masks,
    NotOpened,
    Opening,
    SignedKey,
    decode,
    encode,
    mask,
    sum_codes,
    upload_codes,
)
from fedmm.engines.messages import Invitation, Update
from fedmm.remote.engine import AskingEngine
from fedmm.remote.messaging import Exchange, Messaging
from fedmm.remote.packed import CONFIRM, OPEN, Malformed, Packed
from fedmm.remote.packing import (
    OFFER,
    answer_sum_question,
    pack_key,
    pack_offer,
    pack_sum_question,
    read_key,
    read_offer,
    read_opening,
    read_word,
)
from fedmm.training.privacy import require_no_guard

NAMES = ["a", "b", "c", "d"]
SIZE = 50
SENT = {"z": torch.linspace(-1.0, 1.0, SIZE, dtype=FLOAT64)}
UNREPORTED = {name: kind for name, kind in ALGORITHMS.items() if not kind.reports}
"""Those whose clients send nothing that masks do not hide."""
each_algorithm = pytest.mark.parametrize("kind", UNREPORTED.values(), ids=UNREPORTED)


def invitation(t: int = 3, session: int = 7, **changes: Any) -> Invitation:
    return replace(Invitation(t, SENT, session), **changes)


def updates(seed: int = 0, names: Sequence[str] = NAMES, t: int = 3, session: int = 7) -> dict[str, Update]:
    random = generator(seed)
    return {
        name: Update(t, name, {"z": SENT["z"] + torch.randn(SIZE, generator=random, dtype=FLOAT64)}, session=session)
        for name in names
    }


def masked(masks: dict[str, Masks], sites: Sites, plain: dict[str, Update], **changes: Any) -> dict[str, Update]:
    return {name: masks[name].masked(invitation(**changes), each, sites.offer) for name, each in plain.items()}


def opened(masks: dict[str, Masks], present: Sequence[str], t: int = 3, session: int = 7) -> dict[str, Opening]:
    words = {name: masks[name].confirmed(session, t, present) for name in present}
    return {name: masks[name].opened(session, t, present, words) for name in present}


def summed(plain: dict[str, Update], present: Sequence[str]) -> np.ndarray[Any, Any]:
    return sum((upload_codes(plain[name].vectors, SENT) for name in present), np.zeros(SIZE, dtype=np.uint64))


# Codes ----------------------------------------------------------------------------------------------------------------


def test_codes_keep_numbers_to_half_a_step() -> None:
    vector = torch.randn(1000, dtype=FLOAT64, generator=generator(0))
    assert float((decode(encode(vector)) - vector).abs().max()) <= STEP / 2
    assert decode(encode(torch.tensor([-LARGEST, LARGEST]))).tolist() == [-LARGEST, LARGEST]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 2 * LARGEST, -2 * LARGEST])
def test_what_cannot_be_summed_is_refused_at_the_site(bad: float) -> None:
    with pytest.raises(FedmmError, match="its update"):
        encode(torch.tensor([0.0, bad]))


# Sums -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("present", [NAMES, ["a", "b"], ["b", "c", "d"], ["a", "d"]])
def test_the_opened_sum_is_the_sum_of_the_codes_to_the_bit(present: list[str]) -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    hidden = masked(masks, sites, plain)
    arrived = {name: hidden[name] for name in present}
    assert np.array_equal(sum_codes(arrived, NAMES, opened(masks, present)), summed(plain, present))


@each_algorithm
def test_a_masked_run_is_the_unmasked_one(kind: type[Algorithm]) -> None:
    game, algorithm = random_game(1, clients=4), with_options(kind)
    *_, (state, record) = played(masked_engine(game.problem(), algorithm, 6), 6)
    *_, (plain, _) = played(InProcess(game.problem(), algorithm, 6), 6)
    assert torch.allclose(state.z, plain.z, rtol=0, atol=1e-9)
    for name, own in plain.clients.items():
        for what, vector in own.items():
            assert torch.allclose(state.clients[name][what], vector, rtol=0, atol=1e-9)
    uploads = len(masked_engine(game.problem(), algorithm, 1).server.upload)
    assert record.bytes_up == 4 * uploads * 8 * game.layout.size
    assert record.by_client == {}
    assert record.metrics == {}


def test_the_result_does_not_depend_on_the_masks() -> None:
    game = random_game(2, clients=3)
    runs = [
        [s.z for s, _ in played(masked_engine(game.problem(), FedMM(), 5, secret=each), 5)] for each in (b"x", b"y")
    ]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


# What the server sees -------------------------------------------------------------------------------------------------


def test_a_masked_update_looks_like_chance() -> None:
    """Bits are set as often as not, whatever they hide, and two uploads of one update have nothing in common."""
    size = 20_000
    sent = {"z": torch.zeros(size, dtype=FLOAT64)}
    sites = Sites(NAMES)
    masks = sites.masks()
    seen = []
    for t in range(2):
        update = Update(t, "a", {"z": torch.full((size,), 0.25, dtype=FLOAT64)})
        hidden = masks["a"].masked(Invitation(t, sent), update, sites.offer).vectors[MASKED]
        seen.append(np.unpackbits(hidden.numpy().view(np.uint8)).reshape(size, 64))
    deviation = 0.5 / np.sqrt(size)
    for bits in (*seen, seen[0] ^ seen[1]):
        assert np.abs(bits.mean(axis=0) - 0.5).max() < 6 * deviation


def test_an_update_stays_hidden_when_it_comes_after_the_sum_was_opened_without_it() -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    late = masked(masks, sites, plain)["d"]
    openings = opened(masks, ["a", "b", "c"])
    codes = late.vectors[MASKED].numpy().view(np.uint64)
    for name, opening in openings.items():  # all that the others told of it
        each = mask(opening.gone["d"], SIZE)
        codes = codes + each if name < "d" else codes - each
    left = codes - upload_codes(plain["d"].vectors, SENT)
    assert np.array_equal(left, mask(masks["d"].ledger.sent(RUN, 7, 3).own, SIZE))  # type: ignore[union-attr]
    with pytest.raises(FedmmError, match="does not contain"):
        masks["d"].confirmed(7, 3, ["a", "b", "c"])


def test_masks_of_two_points_do_not_cancel_and_are_not_opened() -> None:
    """A server that sends one site another model, to tell its answer from the others', gets nothing."""
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    hidden = masked({name: masks[name] for name in NAMES[1:]}, sites, {name: plain[name] for name in NAMES[1:]})
    other = {"z": SENT["z"] + 1e-3}
    hidden["a"] = masks["a"].masked(invitation(sent=other), plain["a"], sites.offer)
    words = {name: masks[name].confirmed(7, 3, NAMES) for name in NAMES}
    for name, whose in (("a", "b"), ("b", "a")):
        with pytest.raises(FedmmError, match=f"{whose!r} has not confirmed"):
            masks[name].opened(7, 3, NAMES, words)
    seeds = {name: Opening(masks[name].ledger.sent(RUN, 7, 3).own, {}) for name in NAMES}  # type: ignore[union-attr]
    got = decode(sum_codes(hidden, NAMES, seeds))
    assert float((got - decode(summed(plain, NAMES))).abs().median()) > 1000


def test_a_server_cannot_tell_one_site_that_it_was_counted_and_the_others_that_it_was_not() -> None:
    """It would have both seeds of that site, and its update."""
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    masked(masks, sites, plain)
    others = NAMES[1:]
    words = {"a": masks["a"].confirmed(7, 3, NAMES), **{name: masks[name].confirmed(7, 3, others) for name in others}}
    with pytest.raises(FedmmError, match="'b' has not confirmed"):
        masks["a"].opened(7, 3, NAMES, words)
    with pytest.raises(FedmmError, match="a second one would reveal an update"):
        masks["b"].confirmed(7, 3, NAMES)
    assert masks["b"].opened(7, 3, others, words).gone.keys() == {"a"}


# Keys -----------------------------------------------------------------------------------------------------------------


def forged(sites: Sites, how: str) -> dict[str, SignedKey]:
    offer, attacker = sites.offer, Sites(NAMES, b"attacker").each
    key = attacker["b"].key.public
    bad = {
        "another key, the old signature": SignedKey(key, offer["b"].signature),
        "another key, signed by another": attacker["b"].signed(),
        "no signature": SignedKey(offer["b"].key, b""),
        "another site's": offer["c"],
    }
    return {**offer, "b": bad[how]}


@pytest.mark.parametrize(
    "how", ["another key, the old signature", "another key, signed by another", "no signature", "another site's"]
)
def test_a_key_that_the_server_made_up_is_refused_by_the_site(how: str) -> None:
    sites = Sites(NAMES)
    with pytest.raises(FedmmError, match="mask key of 'b' is not signed"):
        sites.masks()["a"].masked(invitation(), updates()["a"], forged(sites, how))


def test_so_are_a_stranger_another_run_and_another_key_of_its_own() -> None:
    sites, strangers = Sites(NAMES), Sites(["e"])
    masks, plain = sites.masks(), updates()
    with pytest.raises(FedmmError, match="of 'e' is not signed"):
        masks["a"].masked(invitation(), plain["a"], {**sites.offer, **strangers.offer})
    with pytest.raises(FedmmError, match="of 'b' is not signed"):
        replace(masks["a"], run=f"{RUN} too").masked(invitation(), plain["a"], sites.offer)
    with pytest.raises(FedmmError, match="a key for this site that is not its own"):
        masks["a"].masked(invitation(), plain["a"], {**sites.offer, "a": sites.offer["b"]})
    with pytest.raises(FedmmError, match="not an X25519 key"):
        masks["a"].key.seed(bytes(32), b"label")


# One sum a round ------------------------------------------------------------------------------------------------------


def test_two_sums_of_one_round_that_differ_in_a_site_are_refused() -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    masked(masks, sites, plain)
    assert opened(masks, NAMES) == opened(masks, NAMES)  # the same again tells nothing new
    with pytest.raises(FedmmError, match="a second one would reveal an update"):
        masks["a"].confirmed(7, 3, ["a", "b", "c"])
    masked(masks, sites, updates(1, session=8), session=8)  # a server that was restarted, and asks again
    with pytest.raises(FedmmError, match="a second one would reveal an update"):
        masks["a"].confirmed(8, 3, ["a", "b", "c"])
    assert opened(masks, NAMES, session=8)["a"].gone == {}


def test_so_are_two_sums_of_one_update_in_different_runs() -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    masked(masks, sites, plain)
    opened(masks, NAMES)
    again = {name: replace(each, run="another", verify=lambda *_: True) for name, each in masks.items()}
    masked(again, sites, plain)
    with pytest.raises(FedmmError, match="a second one would reveal an update"):
        again["a"].confirmed(7, 3, ["a", "b", "c"])
    masked(again, sites, updates(2, t=4), t=4)
    again["a"].confirmed(7, 4, ["a", "b", "c"])


def test_one_mask_hides_one_update() -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    first = masks["a"].masked(invitation(), plain["a"], sites.offer)
    again = masks["a"].masked(invitation(), plain["a"], sites.offer)
    assert torch.equal(first.vectors[MASKED], again.vectors[MASKED])
    for other in (
        lambda: masks["a"].masked(invitation(), updates(1)["a"], sites.offer),
        lambda: masks["a"].masked(invitation(), plain["a"], {n: k for n, k in sites.offer.items() if n != "d"}),
    ):
        with pytest.raises(FedmmError, match="will not mask a second one"):
            other()


def test_what_was_masked_and_opened_outlives_the_process(tmp_path: Path) -> None:
    sites = Sites(NAMES)
    path = tmp_path / "site" / "masks.jsonl"
    before = sites.masks(ledgers={"a": MaskLedger(path)})["a"]
    first = before.masked(invitation(), updates()["a"], sites.offer)
    before.confirmed(7, 3, ["a", "b", "c"])
    with path.open("ab") as file:
        file.write(b'{"session": 7, "rou')  # cut short by a crash
    after = sites.masks(ledgers={"a": MaskLedger(path)})["a"]
    assert torch.equal(after.masked(invitation(), updates()["a"], sites.offer).vectors[MASKED], first.vectors[MASKED])
    after.confirmed(7, 3, ["a", "b", "c"])
    with pytest.raises(FedmmError, match="a second one would reveal an update"):
        after.confirmed(7, 3, NAMES)
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("nonsense\n")
    with pytest.raises(FedmmError, match="not a mask record"):
        MaskLedger(path)


def test_a_site_opens_no_sum_of_too_few_and_none_that_it_knows_nothing_of() -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(least=3), updates()
    masked(masks, sites, plain)
    for present, reason in ((["a", "b"], "at least 3 updates"), (["a", "b", "x"], "shares no mask with 'x'")):
        with pytest.raises(FedmmError, match=reason):
            masks["a"].confirmed(7, 3, present)
    with pytest.raises(FedmmError, match="sent no update in round 5"):
        masks["a"].confirmed(7, 4, NAMES)
    with pytest.raises(FedmmError, match="among at least 3 sites"):
        masks["a"].masked(invitation(4), plain["a"], {n: k for n, k in sites.offer.items() if n < "c"})


@pytest.mark.parametrize("wrong", [Opening(b"short", {}), Opening(bytes(32), {"d": bytes(32)})])
def test_an_opening_that_is_none_opens_nothing(wrong: Opening) -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    hidden = masked(masks, sites, plain)
    with pytest.raises(NotOpened, match="'b' sent seeds other than"):
        sum_codes(hidden, NAMES, {**opened(masks, NAMES), "b": wrong})


# Sites that are away --------------------------------------------------------------------------------------------------


class Away(Exchange):
    """Sites that miss some of a round: by round, who was never reached, whose update is lost, who does not open."""

    def __init__(self, **missing: dict[int, set[str]]) -> None:
        self.missing = missing

    def invited(self, client: str, invitation: Invitation) -> bool:
        return client not in self.missing.get("invited", {}).get(invitation.round, set())

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        return [each for each in answers if each.client not in self.missing.get("arriving", {}).get(t, set())]

    def confirming(self, t: int, client: str) -> bool:
        return client not in self.missing.get("confirming", {}).get(t, set())

    def opening(self, t: int, client: str) -> bool:
        return client not in self.missing.get("opening", {}).get(t, set())


@pytest.mark.parametrize("stage", ["invited", "arriving"])
@each_algorithm
def test_sites_that_are_away_are_left_out_of_the_sum(stage: str, kind: type[Algorithm]) -> None:
    game, algorithm = random_game(3, clients=4), with_options(kind)
    gone = {1: {"client-0"}, 2: {"client-1", "client-3"}}
    *_, (state, record) = played(masked_engine(game.problem(), algorithm, 6, exchange=Away(**{stage: gone})), 6)
    *_, (plain, _) = played(Messaging(game.problem(), algorithm, 6, Terms(), Away(**{stage: gone})), 6)
    assert torch.allclose(state.z, plain.z, rtol=0, atol=1e-9)
    assert state.counted == plain.counted
    assert record.clients == 4


@pytest.mark.parametrize("stage", ["confirming", "opening"])
def test_a_sum_that_one_site_does_not_help_to_open_is_no_sum_and_the_run_goes_on(stage: str) -> None:
    game = random_game(4, clients=4)
    engine = masked_engine(game.problem(), FedMM(), 4, exchange=Away(**{stage: {1: {"client-2"}}}))
    rounds = list(played(engine, 4))
    (first, _), (second, record), (third, _) = rounds[:3]
    assert torch.equal(first.z, second.z)
    assert not torch.equal(second.z, third.z)
    assert record.clients == 0
    assert {each.client for each in record.refused} == set(game.names)
    assert "not opened: 'client-2' did not help open the sum" in record.refused[0].reason
    nobody = Away(arriving={1: set(game.names)})
    *_, (same, _) = played(Messaging(game.problem(), FedMM(), 4, Terms(), nobody), 4)
    assert torch.allclose(rounds[-1][0].z, same.z, rtol=0, atol=1e-9)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"aggregation": CoordinateMedian()}, "aggregation = 'median' needs each"),
        ({"on_bad_update": "skip"}, "on_bad_update = 'skip' needs each"),
        ({"max_update_norm": 1.0}, "max_update_norm needs each"),
        ({"max_update_ratio": 2.0}, "max_update_ratio needs each"),
        ({"restore": True}, "restore needs each"),
        ({"uploads": "int8"}, "uploads and broadcasts to be 'exact'"),
        ({"broadcasts": "fp16"}, "uploads and broadcasts to be 'exact'"),
    ],
)
def test_what_needs_single_updates_is_refused(terms: dict[str, Any], reason: str) -> None:
    with pytest.raises(FedmmError, match=reason):
        InProcess(random_game(0).problem(), FedMM(), 1, Terms(secure_sum=True, **terms))


def test_what_travels_beside_an_update_and_too_many_sites_are_refused() -> None:
    problem = random_game(0).problem()
    shared = replace(problem, statistics={"mean": torch.zeros(2)}, share_statistics=True)
    with pytest.raises(FedmmError, match="running statistics"):
        InProcess(shared, FedMM(), 1, Terms(secure_sum=True))
    with pytest.raises(FedmmError, match="at most 256 clients, not 300"):
        InProcess(replace(problem, federation=300), FedMM(), 1, Terms(secure_sum=True))
    with pytest.raises(FedmmError, match="must be 'off' with secure_sum"):
        require_no_guard(Terms(secure_sum=True), guarded=True)


# Messages -------------------------------------------------------------------------------------------------------------


def test_keys_questions_and_answers_travel_as_text() -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    assert read_key(pack_key(masks["a"].signed())).key == masks["a"].key.public  # type: ignore[union-attr]
    assert read_offer({OFFER: pack_offer(sites.offer)}).keys() == sites.offer.keys()
    hidden, present = masked(masks, sites, plain), ["a", "b", "d"]
    asked = pack_sum_question(7, 3, present)
    words = {name: read_word(answer_sum_question(masks[name], CONFIRM, asked)) or b"" for name in present}
    asked = pack_sum_question(7, 3, present, words)
    openings = {name: read_opening(answer_sum_question(masks[name], OPEN, asked)) for name in present}
    arrived = {name: hidden[name] for name in present}
    assert np.array_equal(sum_codes(arrived, NAMES, openings), summed(plain, present))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "about", [{}, {OFFER: "[]"}, {OFFER: "{"}, {OFFER: '{"a": 3}'}, {OFFER: '{"a": ["x", "y"]}'}, {OFFER: "[" * 9999}]
)
def test_keys_that_cannot_be_read_are_refused(about: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        read_offer(about)


@pytest.mark.parametrize(
    "changed", [{"round": "3"}, {"session": None}, {"survivors": "{"}, {"survivors": "7"}, {"confirmations": "[]"}]
)
def test_questions_that_cannot_be_read_are_refused(changed: dict[str, Any]) -> None:
    sites = Sites(NAMES)
    masks, plain = sites.masks(), updates()
    masked(masks, sites, plain)
    question = pack_sum_question(7, 3, NAMES, {})
    with pytest.raises(Malformed):
        answer_sum_question(masks["a"], OPEN, question._replace(about={**question.about, **changed}))


@pytest.mark.parametrize("about", [{}, {"own_seed": "x", "gone_seeds": "{}"}, {"own_seed": "00", "gone_seeds": "[]"}])
def test_answers_that_cannot_be_read_are_none(about: dict[str, Any]) -> None:
    assert read_opening(Packed({}, about, {})) is None
    assert read_word(Packed({}, about, {})) is None
    assert read_key(about) is None


def test_an_algorithm_of_which_nothing_is_kept_may_restore() -> None:
    InProcess(random_game(0).problem(), FedAvgGDA(), 1, Terms(secure_sum=True, restore=True))


def test_engines_that_show_every_update_refuse_masks() -> None:
    with pytest.raises(FedmmError, match="'nvflare' shows its server every one"):
        AskingEngine(random_game(0).problem(), FedMM(), 1, lambda kind, questions: {}, Terms(secure_sum=True))
