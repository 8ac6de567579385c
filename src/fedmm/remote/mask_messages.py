"""Masks as they travel: a site's signed key, the keys of a round, and the questions and answers that open a sum."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from fedmm.engines.secure_sum.masking import Masks, Offer, Opening, SignedKey
from fedmm.remote.kinds import CONFIRM
from fedmm.remote.packed import About, Malformed, Packed

OFFER = "masks"
"""Where an invitation has the keys of its round."""
_KEY, _SIGNATURE, _WORD, _OWN, _GONE = "mask_key", "mask_signature", "confirmation", "own_seed", "gone_seeds"
_SESSION, _ROUND, _SURVIVORS, _WORDS = "session", "round", "survivors", "confirmations"


def pack_key(signed: SignedKey) -> About:
    """A site's key, in what it says of itself."""
    return {_KEY: signed.key.hex(), _SIGNATURE: signed.signature.hex()}


def read_key(about: Mapping[str, object]) -> SignedKey | None:
    """The key in what a site said of itself, if there is one."""
    try:
        return SignedKey(_bytes(about[_KEY]), _bytes(about[_SIGNATURE]))
    except (KeyError, Malformed):
        return None


def pack_offer(offer: Offer) -> str:
    """The keys of a round."""
    return json.dumps({name: [each.key.hex(), each.signature.hex()] for name, each in sorted(offer.items())})


def read_offer(about: Mapping[str, object]) -> Offer:
    """The keys of a round, from what the server said."""
    if OFFER not in about:
        raise Malformed("the server sent no keys for masks")
    try:
        table = json.loads(str(about[OFFER])).items()
        return {str(name): SignedKey(_bytes(key), _bytes(signature)) for name, (key, signature) in table}
    except (ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise Malformed("the server's keys for masks cannot be read") from problem


def pack_question(session: int, t: int, survivors: Iterable[str], words: Mapping[str, bytes] | None = None) -> Packed:
    """Asks a site to confirm a sum; with everybody's word, to open it."""
    about: About = {_SESSION: session, _ROUND: t, _SURVIVORS: json.dumps(sorted(survivors))}
    if words is not None:
        about[_WORDS] = json.dumps({name: word.hex() for name, word in words.items()})
    return Packed({}, about, {})


def answered_question(masks: Masks, kind: str, question: Packed) -> Packed:
    """A site's answer."""
    about = question.about
    try:
        session, t = _whole(about[_SESSION]), _whole(about[_ROUND])
        survivors = [str(name) for name in json.loads(str(about[_SURVIVORS]))]
        if kind == CONFIRM:
            return Packed({}, {_WORD: masks.confirmed(session, t, survivors).hex()}, {})
        words = {str(name): _bytes(word) for name, word in json.loads(str(about[_WORDS])).items()}
    except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as problem:
        raise Malformed("the server's question about a sum cannot be read") from problem
    opening = masks.opened(session, t, survivors, words)
    gone = json.dumps({name: seed.hex() for name, seed in opening.gone.items()})
    return Packed({}, {_OWN: opening.own.hex(), _GONE: gone}, {})


def read_word(answer: Packed) -> bytes | None:
    """A site's word in its answer, if it gave it."""
    try:
        return _bytes(answer.about[_WORD])
    except (KeyError, Malformed):
        return None


def read_opening(answer: Packed) -> Opening | None:
    """What a site tells in its answer, if it can be read."""
    try:
        gone = json.loads(str(answer.about[_GONE])).items()
        return Opening(_bytes(answer.about[_OWN]), {str(name): _bytes(seed) for name, seed in gone})
    except (KeyError, ValueError, AttributeError, RecursionError, Malformed):
        return None


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("no whole number")
    return value


def _bytes(text: object) -> bytes:
    try:
        return bytes.fromhex(str(text))
    except ValueError:
        raise Malformed("what should be a key, a signature or a seed is none") from None
