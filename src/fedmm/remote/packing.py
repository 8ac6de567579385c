"""Invitations, updates and masks as named arrays and plain values, for clients in other processes.

A vector ``[size]`` travels as two arrays, one for each group of parameters: ``min.omega`` and ``max.psi``, in the order
of the layout. The point z has these names alone; those of other vectors start with the vector's name:
``control/min.omega``. Anything else is one array: ``z.scales/whole``, ``statistics/NAME``. Sums for a client that lost
its state start with ``totals/``. Arrays are few because engines make at least one request for each. Single numbers are
plain values: ``importance`` of an invitation, ``scalar/NAME`` of an update.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.layout import Layout
from fedmm.engines.masking import Masks, Offer, Opening, SignedKey
from fedmm.engines.messages import NEVER, Invitation, Update
from fedmm.remote.packed import CONFIRM, About, Arrays, Malformed, Packed

_STATISTICS, _TOTALS, _WHOLE, _POINT = "statistics/", "totals/", "whole", "z"
_IMPORTANCE, _SCALAR = "importance", "scalar/"
_OMEGA, _PSI = "min.omega", "max.psi"


def vector_arrays(layout: Layout, vectors: State) -> Arrays:
    """Convert named vectors to arrays."""
    arrays: Arrays = {}
    for name, vector in vectors.items():
        before = "" if name == _POINT else f"{name}/"
        if vector.shape == (layout.size,):
            parts = {_OMEGA: vector[: layout.min_size], _PSI: vector[layout.min_size :]}
            arrays |= {before + part: _array(tensor) for part, tensor in parts.items() if len(tensor)}
        else:
            arrays[before + _WHOLE] = _array(vector)
    return arrays


def read_vectors(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> State:
    """Rebuild the vectors from their arrays."""
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    for key, array in arrays.items():
        name, _, rest = (_POINT, "", key) if key in (_OMEGA, _PSI, _WHOLE) else key.partition("/")
        parts.setdefault(name, {})[rest] = array
    return {
        name: _tensor(layout, part[_WHOLE]) if part.keys() == {_WHOLE} else _join_parts(layout, name, part)
        for name, part in parts.items()
    }


def pack_invitation(layout: Layout, invitation: Invitation) -> Packed:
    """Pack an invitation for transport."""
    arrays = vector_arrays(layout, invitation.travelling)
    arrays |= {_STATISTICS + name: _array(tensor) for name, tensor in invitation.statistics.items()}
    if invitation.totals is not None:
        arrays |= {_TOTALS + name: array for name, array in vector_arrays(layout, invitation.totals).items()}
    about: About = {
        "round": invitation.round,
        "session": invitation.session,
        "counted": invitation.counted,
        "restoring": invitation.totals is not None,
    }
    if invitation.importance is not None:
        about[_IMPORTANCE] = invitation.importance
    return Packed(arrays, about, {})


def read_invitation(layout: Layout, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, object]) -> Invitation:
    """Rebuild an invitation."""
    totals = {name.removeprefix(_TOTALS): array for name, array in arrays.items() if name.startswith(_TOTALS)}
    sent = {name: array for name, array in arrays.items() if not name.startswith((_TOTALS, _STATISTICS))}
    return Invitation(
        _whole_number(about, "round"),
        read_vectors(layout, sent),
        _whole_number(about, "session"),
        _whole_number(about, "counted"),
        _statistics(layout, arrays),
        read_vectors(layout, totals) if about.get("restoring") else None,
        importance=_number(_IMPORTANCE, about[_IMPORTANCE]) if _IMPORTANCE in about else None,
    )


def pack_update(layout: Layout, update: Update) -> Packed:
    """Pack an update for transport."""
    arrays = vector_arrays(layout, update.vectors)
    arrays |= {_STATISTICS + name: _array(tensor) for name, tensor in update.statistics.items()}
    about: About = {
        "client": update.client,
        "round": update.round,
        "session": update.session,
        "base": update.base,
        "lost": update.lost,
    }
    about |= {_SCALAR + name: number for name, number in update.scalars.items()}
    return Packed(arrays, about, update.metrics)


def read_update(layout: Layout, packed: Packed) -> Update:
    """Rebuild an update; raise Malformed with a reason whatever makes it unreadable."""
    arrays, about, metrics = packed
    client = about.get("client")
    if not isinstance(client, str):
        raise Malformed("its answer does not say which client it is from")
    return Update(
        _whole_number(about, "round"),
        client,
        read_vectors(layout, {name: array for name, array in arrays.items() if not name.startswith(_STATISTICS)}),
        _statistics(layout, arrays),
        {name: float(value) for name, value in metrics.items()},
        _whole_number(about, "session"),
        _whole_number(about, "base"),
        about.get("lost") is True,
        {name.removeprefix(_SCALAR): _number(name, about[name]) for name in about if name.startswith(_SCALAR)},
    )


def _join_parts(layout: Layout, name: str, parts: Mapping[str, NDArray[Any]]) -> Tensor:
    sizes = {_OMEGA: layout.min_size, _PSI: layout.size - layout.min_size}
    wanted = {part: size for part, size in sizes.items() if size}
    for part in sorted(parts.keys() ^ wanted.keys()):
        has = "lacks" if part in wanted else "has an unknown"
        raise Malformed(f"its {name!r} {has} part {part!r}")
    for part, size in wanted.items():
        if parts[part].shape != (size,):
            raise Malformed(f"its {name!r} has a part {part!r} of shape {parts[part].shape}, not {(size,)}")
    if len({parts[part].dtype for part in wanted}) > 1:
        raise Malformed(f"its {name!r} has parts of two dtypes")
    return torch.cat([_tensor(layout, parts[part]) for part in wanted])


def _statistics(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> State:
    return {
        name.removeprefix(_STATISTICS): _tensor(layout, array)
        for name, array in arrays.items()
        if name.startswith(_STATISTICS)
    }


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _tensor(layout: Layout, array: NDArray[Any]) -> Tensor:
    try:
        return torch.from_numpy(np.array(array)).to(layout.device)
    except TypeError:
        raise Malformed(f"it sent an array of {array.dtype}, which is not a number") from None


def _whole_number(about: Mapping[str, object], name: str) -> int:
    value = about.get(name, NEVER)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"its {name!r} is {value!r:.40}, not a whole number")
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"its {name!r:.60} is {value!r:.40}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise Malformed(f"its {name!r:.60} is too large a number") from None


# Masks: a site's signed key, the keys of a round, and the questions and answers that open a sum -----------------------

OFFER = "masks"
"""The key under which an invitation has the keys of its round."""
_KEY, _SIGNATURE, _WORD, _OWN, _GONE = "mask_key", "mask_signature", "confirmation", "own_seed", "gone_seeds"
_SESSION, _ROUND, _SURVIVORS, _WORDS = "session", "round", "survivors", "confirmations"


def pack_key(signed: SignedKey) -> About:
    """Pack a site's key for its introduction."""
    return {_KEY: signed.key.hex(), _SIGNATURE: signed.signature.hex()}


def read_key(about: Mapping[str, object]) -> SignedKey | None:
    """Return the key in a site's introduction; None if it has none."""
    try:
        return SignedKey(_bytes(about[_KEY]), _bytes(about[_SIGNATURE]))
    except (KeyError, Malformed):
        return None


def pack_offer(offer: Offer) -> str:
    """Pack the keys of a round."""
    return json.dumps({name: [each.key.hex(), each.signature.hex()] for name, each in sorted(offer.items())})


def read_offer(about: Mapping[str, object]) -> Offer:
    """Rebuild the keys of a round from the server's message."""
    if OFFER not in about:
        raise Malformed("the server sent no keys for masks")
    try:
        table = json.loads(str(about[OFFER])).items()
        return {str(name): SignedKey(_bytes(key), _bytes(signature)) for name, (key, signature) in table}
    except (ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise Malformed("the server's keys for masks cannot be read") from problem


def pack_sum_question(
    session: int, t: int, survivors: Iterable[str], words: Mapping[str, bytes] | None = None
) -> Packed:
    """Ask a site to confirm a sum or, with everybody's confirmations, to open it."""
    about: About = {_SESSION: session, _ROUND: t, _SURVIVORS: json.dumps(sorted(survivors))}
    if words is not None:
        about[_WORDS] = json.dumps({name: word.hex() for name, word in words.items()})
    return Packed({}, about, {})


def answer_sum_question(masks: Masks, kind: str, question: Packed) -> Packed:
    """Return a site's answer to such a question."""
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
    """Return the confirmation in a site's answer; None if it gave none."""
    try:
        return _bytes(answer.about[_WORD])
    except (KeyError, Malformed):
        return None


def read_opening(answer: Packed) -> Opening | None:
    """Return the opening in a site's answer; None if it cannot be read."""
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
        raise Malformed("a key, a signature or a seed is malformed") from None
