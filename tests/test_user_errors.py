"""Whatever a user can get wrong in Python is a ``FedmmError``: one sentence that says what would be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import CLASSES, WIDTH, adapt, labels, mixed_client, network, rows, source_client, target_client
from scipy.sparse import csr_array
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import fedmm
from fedmm import DANN, Client, FedMM, FedmmError, solve
from fedmm.data import rows as clients_data
from fedmm.sklearn import FederatedAdapter

X, Y, T = rows(1), labels(1), rows(2)
NAN = X.clone()
NAN[3, 1] = torch.nan
FRAME = pd.DataFrame(X.numpy(), columns=list("abcd"))
ZERO = torch.zeros(1)


def source(x: Any, y: Any = Y, **options: Any) -> Callable[[], Any]:
    """A federation whose source client holds (x, y)."""
    return lambda: adapt([Client(source=(x, y), name="s"), target_client()], **options)


def target(x: Any) -> Callable[[], Any]:
    return lambda: adapt([source_client(), Client(target=x, name="t")])


def with_(**options: Any) -> Callable[[], Any]:
    return lambda: adapt(**options)


def solving(**options: Any) -> Callable[[], Any]:
    given = {"functions": [lambda x, y: (x * y).sum()], "start": (ZERO, ZERO), "algorithm": FedMM(), "rounds": 1}
    return lambda: solve(**given | options)


class Words(nn.Module):
    def forward(self, x: Any) -> Any:
        return "features"


def broken(x: Any, y: Any) -> Any:
    return x[7] / 0


class Broken:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise OSError("the disk is gone\nand more")


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield X[0]


ADAPT = {
    "clients: pairs": (lambda: adapt([(X, Y), T]), r"clients holds a tuple; give a list such as \[fedmm.Client"),
    "clients: arrays": (lambda: adapt([X, T]), "clients holds a Tensor; give a list such as"),
    "clients: the class": (lambda: adapt([Client]), "clients holds a type; give a list such as"),
    "clients: one": (lambda: adapt(source_client()), "clients is one Client; give a list such as"),
    "clients: a dict": (lambda: adapt({"a": source_client()}), "clients is a dict; give a list such as"),
    "clients: a word": (lambda: adapt("clients"), "clients is a str; give a list such as"),
    "clients: none": (lambda: adapt([]), "at least one client"),
    "clients: nothing held": (lambda: Client(name="a"), r"client 'a' holds nothing: give it source=\(inputs, labels\)"),
    "clients: alike": (
        lambda: adapt([source_client("a"), target_client("a")]),
        "two clients are called 'a'; give every",
    ),
    "clients: name": (lambda: adapt([source_client(3), target_client()]), "name must be text, not 3"),
    "clients: weight": (
        lambda: adapt([source_client(weight="2"), target_client()]),
        "weights must be a number, not '2'",
    ),
    "no target": (
        lambda: adapt([source_client()]),
        r"no client holds target rows.*dann.*target=inputs.*SourceOnly\(\)",
    ),
    "no source": (lambda: adapt([target_client()]), r"no client holds labelled source rows.*source=\(inputs, labels\)"),
    "rounds 0": (with_(rounds=0), "rounds must be at least 1, not 0"),
    "rounds below 0": (with_(rounds=-1), "rounds must be at least 1, not -1"),
    "rounds float": (with_(rounds=2.0), "rounds must be a whole number, not 2.0"),
    "rounds true": (with_(rounds=True), "rounds must be a whole number, not True"),
    "batch size 0": (with_(batch_size=0), "batch_size must be at least 1, not 0"),
    "batch size float": (with_(batch_size=8.5), "batch_size must be a whole number, not 8.5"),
    "batch size for both": (with_(batch_size=1, clients=[mixed_client()]), "batch_size must be at least 2"),
    "seed": (with_(seed=None), "seed must be a whole number, not None"),
    "model: a module": (with_(model=nn.Linear(WIDTH, 3)), "model must be an instance of fedmm's Network, not Linear"),
    "model: the class": (with_(model=fedmm.Network), "model must be an instance .*, not the class Network"),
    "model: of words": (with_(model=network(Words())), "features module must map a batch"),
    "model: of another width": (with_(model=network(nn.Linear(9, 2))), "does not take a batch of shape"),
    "model: not a module": (lambda: fedmm.Network(len, 3), "features must be an nn.Module, not builtin"),
    "model: one class": (lambda: fedmm.Network(nn.Flatten(), 1), "classes must be at least 2, not 1"),
    "model: head's width": (
        lambda: fedmm.Network(nn.Flatten(), 3, task_hidden=64),
        "task_hidden must be a tuple of widths, not 64",
    ),
    "model: head": (lambda: fedmm.Network(nn.Flatten(), 3, task_head="mlp"), "task_head must be an nn.Module"),
    "objective: the class": (with_(objective=DANN), "objective must be an instance .*, not the class DANN"),
    "objective: a word": (
        with_(objective="dann"),
        "objective must be an instance of fedmm's Objective, not str 'dann'",
    ),
    "algorithm: the class": (with_(algorithm=FedMM), "algorithm must be an instance .*, not the class FedMM"),
    "algorithm: a word": (with_(algorithm="fedmm"), "algorithm must be an instance of fedmm's Algorithm"),
    "schedule: unknown": (
        lambda: FedMM(lr_schedule="cosine"),
        "unknown schedule in lr_schedule 'cosine'; did you mean",
    ),
    "schedule: the class": (lambda: FedMM(lr_schedule=fedmm.CosineDecay), "lr_schedule must be .*class CosineDecay"),
    "schedule: a number": (lambda: DANN(nu_schedule=0.1), r"nu_schedule must be a schedule .*, not 0\.1"),
    "terms": (with_(terms=0.5), "terms must be an instance of fedmm's Terms, not float"),
    "guard": (with_(guard=True), "guard must be an instance of fedmm's Guard, not bool"),
    "stopping": (
        with_(stopping="target_information"),
        "stopping must be an instance of fedmm's EarlyStopping, not str",
    ),
    "view": (with_(view=fedmm.CropAndFlip), "view must be a view such as"),
    "best_by": (with_(best_by=3), "best_by must be a validator's name"),
    "best_by unknown": (with_(best_by="accuracy"), "is a metric.*set best_by = 'validation_accuracy'"),
    "device that is not there": (with_(device="cuda:99"), "device 'cuda:99' cannot be used here"),
    "device that is none": (with_(device="tpu"), "device 'tpu' cannot be used here: it must be one of cpu, cuda"),
    "dtype": (with_(dtype=torch.int64), "dtype must be a float dtype of torch, not torch.int64"),
    "dtype of numpy": (with_(dtype=np.float32), "dtype must be a float dtype of torch"),
    "evaluate_every": (with_(evaluate_every=0), "evaluate_every must be at least 1, not 0"),
    "on_round": (with_(on_round="print"), "on_round must be a function"),
    "keys": (with_(keys="image"), r"keys must be two words.*such as \('image', 'label'\), not 'image'"),
    "validation: x alone": (with_(validation=T), r"validation 'target' must be a pair \(x, labels\)"),
    "validation: label": (with_(validation=(T, Y + CLASSES)), "validation 'target' holds label 5 of 3 classes"),
    "validation: shape": (with_(validation=(T[:, :2], Y)), "validation 'target' holds rows of shape .*must agree"),
    "resume: a number": (with_(resume=3), "resume must be a folder's name, not 3"),
}

ROWS = {
    "x: nothing": (source(X[:0], Y[:0]), "client 's': source has no rows; leave out"),
    "x: NaN": (source(NAN), "client 's': source has a value that is NaN or infinite in row 3; remove or fill"),
    "x: words": (source(np.full((24, 4), "a")), "client 's': source holds numpy <U1 values; convert them"),
    "x: objects": (source(np.full((24, 4), None)), "client 's': source holds numpy object values; convert them"),
    "x: complex": (source(X + 1j), "holds torch.complex64 values; convert them to float32"),
    "x: ragged": (source([[1.0], [1.0, 2.0]], [0, 1]), "client 's': source is a list of 2 whose rows are not all"),
    "x: shapes": (target(rows(2)[:, :3]), r"client 't': target holds rows of shape \(3,\), .*of shape \(4,\)"),
    "x: bytes here": (target((T > 0).to(torch.uint8)), "give all clients bytes or none"),
    "x: labels in the target": (target((T, Y)), "client 't': target is a tuple; give x alone"),
    "x: a file's name": (target("rows.csv"), "client 't': target is an object of type str; give a numpy array"),
    "x: an unreadable row": (target(Broken()), "client 't': target, row 0 of the dataset could not be read: the disk"),
    "x: endless": (
        target(DataLoader(Endless(), 8)),
        "is a DataLoader without an end within 100 rows; give one that ends",
    ),
    "x: sparse": (target(csr_array(T.numpy())), "client 't': target is a sparse csr_array; give a dense array"),
    "x: sparse source": (
        source(csr_array(X.numpy())),
        "client 's': source is an object of type csr_array; give a numpy",
    ),
    "x: iterable": (target(Endless()), "is an IterableDataset, whose rows have no numbers; give a map-style Dataset"),
    "y: too few": (source(X, Y[:5]), "client 's': source has 24 rows but 5 labels; give one label for each row"),
    "y: beyond": (source(X, Y + 1), r"client 's': source holds label 3, but there are 3 classes \(0 to 2\)"),
    "y: below 0": (source(X, Y - 1), "row .* has label -1; labels must be whole numbers of 0 or more"),
    "y: halves": (source(X, Y + 0.5), "row 0 has label .*; labels must be whole numbers of 0 or more"),
    "y: one-hot": (
        source(X, nn.functional.one_hot(Y)),
        r"labels of shape \(24, 3\); give one whole number for each row",
    ),
    "y: none": (source(X, None), "client 's': source has labels that are None; give a numpy array"),
    "y: one missing": (source(X, [None, *Y[1:].tolist()]), "source, row 0 has no label; give rows without labels as"),
    "y: one NaN": (
        source(X, [float("nan"), *Y[1:].tolist()]),
        "source, row 0 has no label; give rows without labels as",
    ),
    "y: words and numbers": (source(X, ["a", 1] * 12), "source, row 1 has label 1; the classes are a"),
    "y: too few names": (source(X, ["a", "b"] * 12), r"labels have 2 classes \(a, b\), but the network has 3"),
    "y: words at one client": (
        lambda: adapt([source_client("a"), Client(source=(X, ["b"] * 24), name="b"), target_client()]),
        "client 'b': source has words as labels, but client 'a': source does not; use one kind of labels",
    ),
    "frame: at one client": (source(FRAME), "source is a DataFrame, client 'target': target is not; give all clients"),
    "frame: a column less": (
        lambda: adapt([Client((FRAME, Y), FRAME.drop(columns=["b", "d"]), "s")]),
        "client 's': target lacks the columns 'b', 'd'; give it those of the other clients",
    ),
    "frame: a column more": (
        lambda: adapt([Client((FRAME, Y), FRAME.assign(e=1.0), "s")]),
        "client 's': target has a column 'e' that client 's': source lacks; they must agree",
    ),
    "frame: NaN": (
        lambda: adapt([Client((FRAME, Y), FRAME.assign(a=np.where(np.arange(24) == 2, np.nan, 0.0)), "s")]),
        "client 's': target, column 'a' holds no number in row 2; remove or fill",
    ),
    "frame: dates": (
        lambda: adapt([Client((FRAME, Y), FRAME, "s"), Client(target=FRAME.assign(a=pd.Timestamp(0)))]),
        "column 'a' holds dates, times or lists; turn them into numbers or words",
    ),
    "dict: keys": (
        lambda: adapt([Client([{"scan": x, "label": 0} for x in X], T, "s")]),
        r"client 's': source, row 0 is a dict with no key for the input; name those .* \(it has scan, label\)",
    ),
}

SOLVE = {
    "start: numpy": (
        solving(start=(np.zeros(2), np.zeros(2))),
        "start 'omega' is ndarray; give omega as a torch tensor",
    ),
    "start: dict of numpy": (solving(start=({"a": np.zeros(2)}, ZERO)), "start 'a' is ndarray; give omega as a torch"),
    "start: lists": (solving(start=([0.0], [0.0])), "start 'omega' is list; give omega as a torch tensor"),
    "start: numbers": (solving(start=(0.0, 0.0)), "start 'omega' is float; give omega as a torch tensor"),
    "start: one": (solving(start=ZERO), r"start must be a pair \(omega, psi\)"),
    "start: three": (solving(start=(ZERO, ZERO, ZERO)), r"start must be a pair \(omega, psi\)"),
    "start: whole numbers": (solving(start=(torch.zeros(1).long(), ZERO)), "has dtype torch.int64; a float dtype is"),
    "start: two dtypes": (solving(start=(ZERO.double(), ZERO)), "give all of omega and psi the same dtype and device"),
    "start: NaN": (solving(start=(ZERO / 0, ZERO)), "start has a value that is NaN or infinite; give finite numbers"),
    "functions: one": (solving(functions=broken), "functions is function; give a list with a function per client"),
    "functions: none": (solving(functions=[]), "at least one client's function"),
    "functions: no function": (solving(functions=[3]), "the function of client 'client-1' cannot be called: it is int"),
    "functions: three": (solving(functions=[(broken, iter, 3)]), r"must be f, or a pair \(f, batches\)"),
    "functions: a vector": (solving(functions=[lambda x, y: x * y]), r"must return a 0-dim tensor, not shape \(1,\)"),
    "functions: a float": (solving(functions=[lambda x, y: 1.0]), "must return a 0-dim tensor, not float"),
    "functions: of nothing": (solving(functions=[lambda x, y: torch.ones(())]), "depends on neither omega nor psi"),
    "functions: broken": (solving(functions=[broken]), "the function of client 'client-1' failed: IndexError: index 7"),
    "functions: arguments": (solving(functions=[lambda x: x.sum()]), "client 'client-1' failed: TypeError"),
    "batches: a list": (
        solving(functions=[(broken, [1, 2])]),
        "must be a function that makes an iterable, for example",
    ),
    "batches: no iterable": (
        solving(functions=[(broken, lambda: 3)]),
        "must be a function that makes an iterable: Type",
    ),
    "batches: empty": (solving(functions=[(broken, list)]), "the batches of client 'client-1' are empty"),
    "algorithm: the class": (solving(algorithm=FedMM), "algorithm must be an instance .*, not the class FedMM"),
    "rounds 0": (solving(rounds=0), "rounds must be at least 1, not 0"),
    "weights: a number": (solving(weights=1.0), "weights must be a list of a number per client, not 1.0"),
    "weights: too many": (solving(weights=[1.0, 2.0]), "2 weights were given for 1 clients"),
    "names: numbers": (solving(names=[1]), "a client's name must be text, not 1"),
    "gradient_scale": (solving(gradient_scale=(1.0, 1.0, 1.0)), r"gradient_scale must be a number, or a pair"),
}

MODEL = {
    "predict: shape": (lambda: adapt().predict(rows(1)[:, :2]), r"takes rows of shape \(4,\), not \(2,\)"),
    "predict: NaN": (lambda: adapt().predict(NAN.numpy()), "input has a value that is NaN or infinite in row 3"),
    "predict: frame": (lambda: adapt().predict(FRAME), "input is a DataFrame, but the clients' rows are not; give an"),
    "score: label": (lambda: adapt().score(X, Y + 1), "the labels hold 3, but there are 3 classes"),
    "score: words": (lambda: adapt().score(X, ["a"] * 24), "row 0 has label 'a'; labels must be whole numbers"),
    "save: no folder": (lambda: adapt().save("/nowhere/at/all.safetensors"), "could not be written to /nowhere/at/all"),
    "load: no file": (
        lambda: fedmm.load_model("/nowhere.safetensors", network()),
        "/nowhere.safetensors cannot be read",
    ),
}


ARRAY, NUMBERS = X.numpy(), Y.numpy()


def fitted(x: Any = ARRAY, y: Any = NUMBERS, domains: Any = None, **options: Any) -> Callable[[], Any]:
    return lambda: FederatedAdapter(**{"rounds": 1, "local_steps": 1} | options).fit(x, y, domains)


HALVES = np.repeat([1, -1], 12)
ESTIMATOR = {
    "y: none": (fitted(y=None), "requires y to be passed"),
    "y: one class": (fitted(y=np.zeros(24)), "y holds one class, .*; at least two are needed"),
    "y: missing at a source": (
        fitted(y=np.where(HALVES == 1, np.nan, 0.0), domains=HALVES),
        "y has no label in row 0, which belongs to a source domain; give it one",
    ),
    "no source": (fitted(domains=-np.ones(24)), "every row belongs to a target domain; give labelled rows of a source"),
    "domains: too few": (fitted(domains=[1, -1]), "sample_domain has 2 entries, but there are 24 rows"),
    "domains: words": (fitted(domains=["a"] * 24), "sample_domain must hold a whole number for each row"),
    "domains: halves": (fitted(domains=HALVES + 0.5), "sample_domain must hold a whole number for each row"),
    "objective": (fitted(objective="dan"), "unknown objective 'dan'; did you mean"),
    "objective: the class": (fitted(objective=DANN), r"objective must be a name \(.*\) or an instance, not <class"),
    "algorithm": (fitted(algorithm="fedm"), "unknown algorithm 'fedm'; did you mean"),
    "an option it lacks": (
        fitted(algorithm="fedavg_gda", penalty=1.0),
        "penalty is not an option of algorithm 'fedavg_gda'",
    ),
    "an option too many": (fitted(objective=DANN(), nu=0.5), "nu cannot be combined with an instance as objective"),
    "rounds": (fitted(rounds=0), "rounds must be at least 1, not 0"),
    "rounds: float": (fitted(rounds=1.5), "rounds must be a whole number, not 1.5"),
    "hidden": (fitted(hidden=(0,)), "hidden must be"),
    "hidden: none": (fitted(hidden=()), "hidden must name at least one layer's width"),
    "model": (fitted(model="mlp"), "model must be a torch.nn.Module or a fedmm.Network, not 'mlp'"),
    "model: classes": (
        fitted(model=fedmm.Network(nn.Flatten(), 5)),
        "Network of 5 classes, but y holds 3; make it with",
    ),
}
CASES = {
    f"{group} {name}": case
    for group, cases in {"adapt": ADAPT, "rows": ROWS, "solve": SOLVE, "model": MODEL, "estimator": ESTIMATOR}.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told_in_one_sentence_that_says_what_would_be_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients_data, "_MOST_ROWS_READ", 100)
    mistake, message = CASES[name]
    with pytest.raises(FedmmError, match=message) as caught:
        mistake()
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedmmError, match="file"):
        adapt(resume=tmp_path / "file" / "folder")


def test_going_on_with_other_data_is_told(tmp_path: Path) -> None:
    adapt(resume=tmp_path)
    with pytest.raises(FedmmError, match=r"clients\.source"):
        adapt([source_client(seed=9), target_client()], resume=tmp_path)
