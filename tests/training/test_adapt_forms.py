"""``fedmm.adapt`` and its models take rows in the forms that people have them in, and answer in kind."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from problems import CLASSES, WIDTH, adapt, features, labels, network, rows, source_client, target_client
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

import fedmm
from fedmm import Client, FedMM, FedmmError
from fedmm.data.rows import as_rows

X, Y, T = rows(1), labels(1), rows(2)
NAMES = ["cat", "dog", "eel"]
WORDS = [NAMES[label] for label in Y.tolist()]
COLUMNS = list("abcd")
FRAME, TARGET = pd.DataFrame(X.numpy(), columns=COLUMNS), pd.DataFrame(T.numpy(), columns=COLUMNS)


class Rows:
    """A data set with numbered rows that is no torch Dataset, as those of Hugging Face are."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from X


DICTS = [{"image": x, "label": int(y), "id": number} for number, (x, y) in enumerate(zip(X, Y, strict=True))]
TARGET_DICTS = [{"image": t} for t in T]
PAIRS = TensorDataset(X, Y)
FORMS: dict[str, tuple[Any, Any]] = {
    "lists": ((X.tolist(), Y.tolist()), T.tolist()),
    "list of tensors": ((list(X), list(Y)), list(T)),
    "list of arrays": ((list(X.numpy()), Y.numpy()), list(T.numpy())),
    "frames": ((FRAME, pd.Series(Y.numpy())), TARGET),
    "frames in another order": ((FRAME, pd.Series(Y.numpy(), index=range(50, 74))), TARGET[["d", "b", "a", "c"]]),
    "loaders": (DataLoader(PAIRS, 7), DataLoader(TensorDataset(T), 5)),
    "loader of dicts": (DataLoader(DICTS, 7), DataLoader(TARGET_DICTS, 24)),  # type: ignore[arg-type]
    "dict rows": (Rows(DICTS), Rows(TARGET_DICTS)),
    "list of dicts": (DICTS, TARGET_DICTS),
    "list of pairs": (list(zip(X, Y, strict=True)), list(T)),
    "dict of arrays": ({"x": X.numpy(), "y": Y.numpy()}, {"x": T.numpy()}),
    "subset and concatenation": (Subset(PAIRS, range(24)), ConcatDataset([TensorDataset(T[:9]), TensorDataset(T[9:])])),
}


@pytest.fixture(scope="module")
def reference() -> fedmm.Adapted:
    return adapt([Client((X, Y), name="s"), Client(target=T, name="t")])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_bits(form: str, reference: fedmm.Adapted) -> None:
    source, target = FORMS[form]
    same = adapt([Client(source, name="s"), Client(target=target, name="t")])
    assert torch.equal(same.state.z, reference.state.z)
    assert torch.equal(torch.as_tensor(same.predict_proba(target)), reference.predict_proba(T))
    assert same.score(source) == reference.score(X, Y)


def test_keys_that_are_not_usual_are_named(reference: fedmm.Adapted) -> None:
    scans = Rows([{"scan": x, "diagnosis": y, "image": 3} for x, y in zip(X, Y, strict=True)])
    targets = Rows([{"scan": t, "image": 3} for t in T])
    clients = [Client(scans, name="s"), Client(target=targets, name="t")]
    adapted = adapt(clients, keys=("scan", "diagnosis"), validation=scans)
    assert torch.equal(adapted.state.z, reference.state.z)
    assert adapted.history[-1]["target_accuracy"] == adapted.score(scans) == reference.score(X, Y)
    assert np.array_equal(adapted.predict(targets), reference.predict(T).numpy())


# Answers in kind ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (T, torch.Tensor),
        (TensorDataset(T), torch.Tensor),
        (DataLoader(TensorDataset(T)), torch.Tensor),
        (T.numpy(), np.ndarray),
        (T.tolist(), np.ndarray),
        (Rows(list(T.numpy())), np.ndarray),
    ],
    ids=["tensor", "Dataset", "DataLoader", "array", "list", "rows"],
)
def test_tensors_give_tensors_and_all_else_arrays(x: Any, kind: type, reference: fedmm.Adapted) -> None:
    for method in ("predict", "predict_proba", "logits", "features"):
        answer, expected = getattr(reference, method)(x), getattr(reference, method)(T)
        assert isinstance(answer, kind)
        assert torch.equal(torch.as_tensor(answer), expected)


def test_a_score_is_the_share_of_rows_that_are_predicted(reference: fedmm.Adapted) -> None:
    right = float((reference.predict(X) == Y).double().mean())
    assert reference.score(X.numpy(), Y.tolist()) == pytest.approx(right)
    assert reference.score(PAIRS) == reference.score(DataLoader(PAIRS, 5)) == reference.score((X, Y))


@pytest.mark.parametrize("y", [WORDS, np.array(WORDS), pd.Series(WORDS), pd.Series(WORDS, dtype="category")], ids=type)
def test_labels_that_are_words_are_numbered_in_order_and_given_back(y: Any, reference: fedmm.Adapted) -> None:
    clients = [Client((X, y), name="s"), Client(target=T, name="t")]
    adapted = adapt(clients, validation=(X, WORDS), source_validation=(X, y))
    assert torch.equal(adapted.state.z, reference.state.z)
    assert adapted.classes_.tolist() == NAMES
    assert reference.classes_.tolist() == [0, 1, 2]
    expected = [NAMES[label] for label in reference.predict(T).tolist()]
    for x in (T, T.numpy(), TensorDataset(T)):
        assert adapted.predict(x).tolist() == expected
    assert adapted.score(X, WORDS) == adapted.history[-1]["target_accuracy"] == reference.score(X, Y)
    with pytest.raises(FedmmError, match="row 0 has label 'cow'; the classes are cat, dog, eel"):
        adapted.score(X, ["cow"] * 24)


def test_classes_are_those_of_all_clients_together() -> None:
    first, second = (Client((X[:12], [word] * 12), name=word) for word in ("zebra", "ape"))
    loader = Client(DataLoader([{"x": x, "label": "yak"} for x in X]), name="third")  # type: ignore[arg-type]
    items = Client(Rows([(x, "bee") for x in X]), name="fourth")
    model = fedmm.Network(features(), 4)
    assert adapt([first, second, loader, items, target_client()], model).classes_.tolist() == [
        "ape",
        "bee",
        "yak",
        "zebra",
    ]


def test_columns_of_words_are_numbered_over_all_clients() -> None:
    source = pd.DataFrame({"age": range(24), "ward": ["a", "b"] * 12, "smokes": [True, False] * 12})
    target = pd.DataFrame({"ward": ["c", None] * 4, "smokes": [False] * 8, "age": range(8)})
    adapted = adapt([Client((source, Y)), Client(target=target)], network(nn.LazyLinear(5)))
    seen = adapted.show.stored
    assert seen == (1 + 4 + 1,)  # age; a, b, c or anything else; smokes
    encoded = as_rows([[3.0, 0.0, 0.0, 1.0, 0.0, 1.0], [4.0, 0.0, 0.0, 0.0, 1.0, 0.0]], "rows", labelled=False)
    rows_ = pd.DataFrame({"smokes": [True, False], "ward": ["c", "never seen"], "age": [3, 4], "more": ["left", "out"]})
    assert torch.equal(torch.as_tensor(adapted.features(rows_)), adapted.features(encoded))


def test_pictures_become_bytes() -> None:
    grey, colour = Image.new("L", (5, 4), 7), Image.new("RGB", (5, 4), (1, 2, 3))
    rows_ = as_rows([{"image": grey, "label": 1}], "rows", labelled=True)
    assert rows_.take(torch.tensor([0])).tolist() == torch.full((1, 1, 4, 5), 7).tolist()
    taken = as_rows([colour, colour.convert("RGBA")], "rows", labelled=False).take(torch.tensor([1]))
    assert taken.dtype == torch.uint8
    assert torch.equal(taken[0, :, 0, 0], torch.tensor([1, 2, 3], dtype=torch.uint8))
    with pytest.raises(FedmmError, match="rows is a picture of mode F; convert it to L or RGB"):
        as_rows([Image.new("F", (2, 2))], "rows", labelled=False)


# Kept, copied and shown -----------------------------------------------------------------------------------------------


def test_a_saved_model_knows_its_columns_and_classes(tmp_path: Path) -> None:
    source, target = FRAME.assign(ward=["a", "b"] * 12), TARGET.assign(ward="b")
    model = network(nn.LazyLinear(5))
    adapted = adapt([Client((source, WORDS)), Client(target=target)], model)
    adapted.save(tmp_path / "model.safetensors")
    again = fedmm.load_model(tmp_path / "model.safetensors", network(nn.Linear(WIDTH + 3, 5)))
    shuffled = target[["ward", "c", "a", "b", "d"]]
    assert again.predict(shuffled).tolist() == adapted.predict(target).tolist()
    assert again.classes_.tolist() == NAMES
    assert again.score(source, WORDS) == adapted.score(source, WORDS)
    with pytest.raises(FedmmError, match="input lacks the column 'ward'"):
        again.predict(TARGET)


def test_a_file_of_numbered_classes_and_arrays_is_as_it_was(tmp_path: Path, reference: fedmm.Adapted) -> None:
    reference.save(tmp_path / "model.safetensors")
    head = (tmp_path / "model.safetensors").read_bytes()[:2000]
    assert not any(word in head for word in (b"class_names", b"columns", b"keys"))


@pytest.mark.parametrize(
    "copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy], ids=["pickle", "copy"]
)
def test_a_copied_model_predicts_the_same(copied: Any, reference: fedmm.Adapted) -> None:
    same = copied(reference)
    assert torch.equal(same.predict_proba(T), reference.predict_proba(T))
    function = same._function
    function.module.task_head[0].bias.data += 1.0  # still a view of the flat vector
    assert torch.equal(function._point[function.layout.min_size - CLASSES : function.layout.min_size],
                       function.module.task_head[0].bias.data)  # fmt: skip


def test_results_clients_and_problems_say_what_they_are_and_not_their_numbers() -> None:
    adapted = adapt(validation=(X, Y), rounds=3)
    accuracy = adapted.history[-1]["target_accuracy"]
    assert repr(adapted).startswith(
        f"Adapted(fedmm dann: 3 rounds over 2 clients, target accuracy {accuracy:.1%}, best by"
    )
    assert "Chosen(round" in repr(adapted.best)
    assert repr(source_client()) == "Client(source=(Tensor[24, 4], Tensor[24]), name='source')"
    assert repr(Client(target=DataLoader(Endless()))) == "Client(target=<DataLoader>)"
    assert repr(Client(target=Rows([1, 2]), weight=2.0)) == "Client(target=<Rows of 2>, weight=2.0)"
    solution = fedmm.solve([lambda x, y: (x * y).sum()], (torch.ones(2), torch.ones(2)), FedMM(), 2)
    assert repr(solution) == "Solution(completed after 2 rounds over 1 clients, 2 numbers in omega, 2 in psi)"


# Schedules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", fedmm.SCHEDULES)
def test_a_schedule_may_be_given_by_its_name(name: str) -> None:
    schedule = fedmm.SCHEDULES[name]()
    assert FedMM(lr_schedule=name) == FedMM(lr_schedule=schedule)
    assert fedmm.DANN(nu_schedule=name) == fedmm.DANN(nu_schedule=schedule)
    assert type(schedule) is getattr(fedmm, type(schedule).__name__)


def test_a_schedule_by_name_is_followed() -> None:
    named = adapt(
        algorithm=FedMM(0.1, 0.1, lr_schedule="cosine_decay"), objective=fedmm.DANN(nu_schedule="dann_warmup")
    )
    given = adapt(
        algorithm=FedMM(0.1, 0.1, lr_schedule=fedmm.CosineDecay()), objective=fedmm.DANN(nu_schedule=fedmm.DannWarmup())
    )
    constant = adapt(algorithm=FedMM(0.1, 0.1))
    assert torch.equal(named.state.z, given.state.z)
    assert not torch.equal(named.state.z, constant.state.z)
