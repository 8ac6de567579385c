"""Tables at sites: the rows that one process makes of them, what leaves a site, and what is refused at both ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

pandas = pytest.importorskip("pandas", reason="tables need fedmm[tables]")

from deploy.table_sites import (  # noqa: E402
    CLASSES,
    FEATURES,
    NAMES,
    agreed,
    read_json,
    run,
    table,
    tables,
    write_site,
)

from fedmm import FedmmError  # noqa: E402
from fedmm.config.schema import Experiment  # noqa: E402
from fedmm.data.columns import Scaling  # noqa: E402
from fedmm.data.datasets.table import Table  # noqa: E402
from fedmm.data.inputs import TableInput, build_input  # noqa: E402
from fedmm.data.rows import TensorRows  # noqa: E402
from fedmm.deploy import server as serving  # noqa: E402
from fedmm.inference.load_run import open_run  # noqa: E402
from fedmm.inference.predict import open_rows, predict_rows  # noqa: E402
from fedmm.remote.flower.engine import Patience  # noqa: E402
from fedmm.remote.packed import DESCRIBE, INTRODUCE, NAME, Packed  # noqa: E402
from fedmm.sites.config import read_site  # noqa: E402
from fedmm.sites.experiments import experiment_text  # noqa: E402
from fedmm.sites.rows import site_rows  # noqa: E402
from fedmm.sites.tables import DESCRIPTION, describe_table  # noqa: E402
from fedmm.sites.work import SiteWork  # noqa: E402


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, retry_after=0.0, pause=0.0))


def sites(folder: Path, frames: dict[str, Any] | None = None, **more: Any) -> dict[str, Path]:
    return {name: write_site(folder, name, frame, **more) for name, frame in (frames or tables()).items()}


def log(folder: Path) -> str:
    return (folder / "server.log").read_text()


# The same rows as in one process --------------------------------------------------------------------------------------


def in_one_process(folder: Path, scaling: Scaling) -> tuple[Any, dict[str, Any]]:
    """The data set ``table`` over three files, and of each file the rows that are trained on."""
    frames = {name: table(place + 1, 60) for place, name in enumerate(NAMES)}
    number = 0
    for frame in frames.values():
        frame["row"] = range(number, number + len(frame))
        number += len(frame)
    folder.mkdir()
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    files = {name: str(folder / f"{name}.csv") for name in NAMES}
    options: dict[str, Any] = {
        "files": files, "label": "diagnosis", "target_sites": ("west",), "drop": ("comment",), "categorical": ("sex",),
    }  # fmt: skip
    numbered = Table(**options, scaling="none").load()
    assert isinstance(numbered.input, TableInput)
    place = numbered.input.headings.index("row")
    trained = {*numbered.source.x[:, place].int().tolist(), *numbered.target.x[:, place].int().tolist()}
    kept = {name: frame[frame["row"].isin(trained)] for name, frame in frames.items()}
    kept["west"] = kept["west"].drop(columns="diagnosis")
    return Table(**options, scaling=scaling).load(), kept


@pytest.mark.parametrize("scaling", ["standard", "per_site", "none"])
def test_sites_train_on_the_rows_of_one_process(tmp_path: Path, scaling: Scaling) -> None:
    pair, frames = in_one_process(tmp_path / "one", scaling)
    features = [*FEATURES, "row"]
    each = agreed(data={"features": features, "scaling": scaling}, run={"rounds": 1})
    files = sites(tmp_path / "sites", frames, features=features, min_rows=1)
    told = json.dumps(read_json(run(tmp_path / "server", files, each) / "encoding.json")["columns"])
    for name, file in files.items():
        rows = site_rows(read_site(file), each, told)
        held, domain, who = (rows.target, pair.target, pair.sites.target)
        if rows.source is not None:
            held, domain, who = (rows.source, pair.source, pair.sites.source)
            assert rows.source.y is not None
            assert torch.equal(rows.source.y, domain.y[who == pair.sites.names.index(name)])
        assert held is not None
        expected = domain.x[who == pair.sites.names.index(name)]
        if scaling == "standard":
            # a mean and a deviation that are off by a few float64 roundings move a float32 by one of its own at most
            torch.testing.assert_close(held.x, expected, rtol=2.0**-23, atol=1e-12)
        else:
            assert torch.equal(held.x, expected)


def test_whatever_the_file_is_its_rows_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("openpyxl")
    found = []
    for ending in (".csv", ".parquet", ".xlsx"):
        file = write_site(tmp_path / ending[1:], "north", table(1, 60), ending=ending)
        found.append(describe_table(read_site(file), agreed(), print).arrays[DESCRIPTION])
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_a_run_over_tables_predicts_for_files_and_goes_on_after_a_crash(tmp_path: Path) -> None:
    frames = tables()
    files, each = sites(tmp_path / "sites", frames), agreed()
    folder = run(tmp_path, files, each)
    kind = build_input(read_json(folder / "encoding.json"))
    assert isinstance(kind, TableInput)
    assert read_json(folder / "input.json")["input"] == read_json(folder / "encoding.json")
    assert kind.headings == ("age", "crp", "ward", "ward missing", "sex=f", "sex=m", "sex=other")
    opened = open_run(folder)
    frames["north"].to_csv(tmp_path / "new.csv", index=False)
    (part,) = open_rows(opened, tmp_path / "new.csv").parts
    assert predict_rows(opened, part).logarithms.shape == (60, 2)
    assert part.y is not None
    assert sorted(set(part.y.tolist())) == [0, 1]
    longer = agreed(run={"rounds": 4})
    (tmp_path / "again").mkdir()
    whole = run(tmp_path / "again", sites(tmp_path / "again" / "sites", frames), longer)
    (folder / "experiment.toml").write_text((whole / "experiment.toml").read_text())
    run(tmp_path, files, longer, resume=True)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert log(folder).count("tables: 4 columns become 7 numbers") == 1  # nobody is asked again


def test_rows_are_not_copied_again_for_another_list_of_sites(tmp_path: Path) -> None:
    file = write_site(tmp_path, "north", table(1, 60))
    told = json.dumps([{"name": "age", "mean": 50.0, "deviation": 9.0, "levels": []}])
    for names in (["north"], ["north", "south"]):
        site_rows(read_site(file), agreed(data={"sites": names}), told)
    (_,) = (tmp_path / "state" / "north" / "rows").iterdir()
    site_rows(read_site(file), agreed(), told.replace("9.0", "8.0"))
    assert len(list((tmp_path / "state" / "north" / "rows").iterdir())) == 2


def test_rows_without_label_are_the_target_of_a_site_with_both(tmp_path: Path) -> None:
    frame = table(1, 60)
    frame.loc[10:29, "diagnosis"] = None
    config = read_site(write_site(tmp_path, "north", frame, domain="both"))
    rows = site_rows(config, agreed(), json.dumps([{"name": "age", "levels": []}]))
    assert rows.source is not None
    assert rows.target is not None
    assert rows.source.x.squeeze(1).tolist() == frame["age"][frame["diagnosis"].notna()].tolist()
    assert rows.target.x.squeeze(1).tolist() == frame["age"][10:30].tolist()


def test_columns_and_labels_may_have_other_names_at_a_site(tmp_path: Path) -> None:
    frame = table(1, 60)
    other = frame.rename(columns={"age": "Alter"}).assign(
        diagnosis=frame["diagnosis"].map({"ill": "1", "healthy": "0"})
    )
    plain, renamed = (
        describe_table(read_site(write_site(tmp_path / name, "north", each, **more)), agreed(), print)
        for name, each, more in (
            ("plain", frame, {}),
            ("other", other, {"rename": {"Alter": "age"}, "classes": {"0": "healthy", "1": "ill"}}),
        )
    )
    assert np.array_equal(plain.arrays[DESCRIPTION], renamed.arrays[DESCRIPTION])


# What differs between sites -------------------------------------------------------------------------------------------


def changed(name: str, change: Callable[[Any], Any]) -> Any:
    frames = tables()
    frames[name] = change(frames[name])
    return frames


def test_all_that_differs_is_told_at_once_by_name_and_no_cell_leaves(tmp_path: Path, capsys: Any) -> None:
    frames = changed("south", lambda frame: frame.drop(columns=["crp", "ward"]))
    frames["north"]["age"] = frames["north"]["age"].astype(object)
    frames["north"].loc[3, "age"] = "secret words"
    with pytest.raises(FedmmError) as refused:
        run(tmp_path / "server", sites(tmp_path, frames), agreed())
    assert str(refused.value) == (
        "the sites' tables do not fit the experiment: north has text in 'age', where the experiment has numbers; south "
        "has no column 'crp', 'ward'"
    )
    assert "secret" not in log(tmp_path / "server" / "runs" / "one")
    at_the_site = capsys.readouterr().err
    assert " north: table: column 'age' holds secret words in row 4" in at_the_site
    assert " south: table: this site has no column 'crp', 'ward'" in at_the_site


def test_a_column_that_a_site_lacks_can_be_missing_in_all_of_its_rows(tmp_path: Path) -> None:
    frames = changed("south", lambda frame: frame.drop(columns="crp").assign(ward=np.nan))
    folder = run(tmp_path / "server", sites(tmp_path, frames), agreed(data={"lacking": "missing"}))
    assert "tables: south has no column 'crp'" in log(folder)
    assert "tables: south has too few rows to give sums of 'ward'" in log(folder)
    columns = {column["name"]: column for column in read_json(folder / "encoding.json")["columns"]}
    assert columns["crp"]["indicator"]
    expected = pandas.concat([frames["north"]["crp"], frames["west"]["crp"]]).mean()
    assert columns["crp"]["mean"] == pytest.approx(expected, rel=1e-12)


def test_words_that_are_no_category_are_told_as_about_how_many_rows(tmp_path: Path) -> None:
    frames = changed("south", lambda frame: frame.assign(sex=["secret"] * 43 + ["f", "m"]))
    frames["west"].loc[4, "sex"] = "hidden"
    folder = run(tmp_path / "server", sites(tmp_path, frames), agreed())
    assert "tables: south has words that are not agreed categories in 'sex' (about 40 rows)" in log(folder)
    assert "tables: west has words that are not agreed categories in 'sex' (a few rows)" in log(folder)
    assert not {"secret", "hidden"} & set(log(folder).split())


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        (lambda frame: frame.assign(diagnosis="secret"), {}, "south has labels that are not a class of the experiment"),
        (lambda frame: frame.assign(diagnosis=["ill"] * 44 + [""]), {}, "south has rows without label"),
        (lambda frame: frame, {"label": "outcome"}, "south has no label column of the name that its file gives"),
        (lambda frame: frame, {"separator": ";"}, "south has a table that cannot be read as its file says"),
        (lambda frame: frame, {"features": ["age", "crp", "ward"]}, "south has no column 'sex'"),
        (lambda frame: frame, {"rename": {"comment": "age"}}, "south has a table that cannot be read"),
    ],
)
def test_a_site_says_what_is_wrong_without_its_cells(
    tmp_path: Path, change: Callable[[Any], Any], more: dict[str, Any], words: str
) -> None:
    frames = tables()
    files = sites(tmp_path, frames)
    files["south"] = write_site(tmp_path, "south", change(frames["south"]), **more)
    with pytest.raises(FedmmError, match=words) as refused:
        run(tmp_path / "server", files, agreed())
    assert not {"secret", str(tmp_path)} & set(str(refused.value).split())


def test_sites_without_tables_and_experiments_without_columns_do_not_go_together(tmp_path: Path) -> None:
    work = SiteWork(read_site(write_site(tmp_path, "north", table(1, 60))))
    pictures = agreed(data={"features": [], "categories": {}, "shape": [4]})
    asked = Packed({}, {"run": "one", "experiment": experiment_text(pictures)}, {})
    for kind in (INTRODUCE, DESCRIBE):
        with pytest.raises(FedmmError, match="has a table, but the experiment names no columns of tables"):
            work(kind, asked)
    np.savez(tmp_path / "rows.npz", target_x=np.zeros((30, 7), np.float32))
    file = tmp_path / "npz.toml"
    file.write_text(
        '[site]\nname = "west"\n[data]\nkind = "npz"\npath = "rows.npz"\ndomain = "target"\n'
        '[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\n'
    )
    asked = Packed({}, {"run": "one", "experiment": experiment_text(agreed())}, {})
    with pytest.raises(FedmmError, match="the experiment is for tables, but this site's data is not a table"):
        SiteWork(read_site(file))(INTRODUCE, asked)


# What leaves a site ---------------------------------------------------------------------------------------------------


def described(file: Path, each: Experiment) -> Any:
    asked = Packed({}, {"run": "one", "experiment": experiment_text(each)}, {})
    return SiteWork(read_site(file))(DESCRIBE, asked).arrays[DESCRIPTION]


def test_the_sums_of_a_site_do_not_depend_on_what_the_server_asks(tmp_path: Path) -> None:
    """Else two questions, with other seeds or columns, could differ by a row."""
    file = write_site(tmp_path, "north", table(1, 60), validation_rows=20)
    first = described(file, agreed())
    for other in (agreed(run={"seed": 7}), agreed(data={"scaling": "per_site"}), agreed(data={"sites": ["north"]})):
        assert np.array_equal(described(file, other), first)


def test_below_min_rows_no_sum_leaves_a_site_and_it_takes_no_part(tmp_path: Path) -> None:
    files = sites(tmp_path, tables(south=19))
    assert not described(files["south"], agreed())[:, 2:].any()
    with pytest.raises(FedmmError, match=r"south.* holds fewer source rows than its policy\.min_rows, 20"):
        run(tmp_path / "server", files, agreed())
    assert "tables: south has too few rows to give sums of 'age', 'crp', 'ward'" in log(
        tmp_path / "server" / "runs" / "one"
    )


def test_counts_are_told_for_a_few_different_questions_alone(tmp_path: Path) -> None:
    file = write_site(tmp_path, "north", table(1, 60), descriptions=2)
    ranges = {"age": [0, 100], "crp": [0, 1000], "ward": [0, 10]}
    for top in (100, 101, 100):
        described(file, agreed(data={"scaling": "robust", "ranges": {**ranges, "age": [0, top]}}))
    with pytest.raises(FedmmError, match="has described its table for 2 sets of categories, dates and ranges"):
        described(file, agreed(data={"scaling": "robust", "ranges": {**ranges, "age": [0, 102]}}))
    described(file, agreed(data={"scaling": "fixed", "ranges": {**ranges, "age": [0, 102]}}))


def test_a_site_encodes_no_other_columns_than_the_agreed_ones(tmp_path: Path) -> None:
    config = read_site(write_site(tmp_path, "north", table(1, 60)))
    for told, words in (
        ('[{"name": "comment", "levels": []}]', "a column, or categories"),
        ('[{"name": "sex", "levels": ["f"]}]', "a column, or categories"),
        ('[{"name": "age", "levels": []}, {"name": "age", "levels": []}]', "a column twice"),
        ("[" * 30_000, "sent no valid encoding of columns"),
        ('{"name": 3}', "sent no valid encoding of columns"),
        ('[{"name": "age", "levels": [], "deviation": 0}]', "sent no valid encoding of columns"),
    ):
        with pytest.raises(FedmmError, match=words):
            site_rows(config, agreed(), told)


# With noise -----------------------------------------------------------------------------------------------------------

NOISE = {"name": "gaussian"}
PLAIN = {"centre": "none", "batch_norm": "frozen"}


def test_with_noise_learnt_scaling_is_refused_and_fixed_ranges_send_nothing(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="noise in updates needs fedmm[privacy]")
    files = sites(tmp_path)
    with pytest.raises(FedmmError, match=r"data.scaling = 'standard' is learnt from sums .* use scaling = 'fixed'"):
        run(tmp_path / "refused", files, agreed(transmission=NOISE, model=PLAIN))
    ranges = {"age": [0, 100], "crp": [0, 1000], "ward": [0, 10]}
    each = agreed(transmission=NOISE, model=PLAIN, data={"scaling": "fixed", "ranges": ranges})
    folder = run(tmp_path / "server", files, each)
    assert not any(described(file, each).any() for file in files.values())
    assert "completed after round 2" in log(folder)
    assert read_json(folder / "input.json")["input"]["fixed"] is True


# Sites that lie -------------------------------------------------------------------------------------------------------


def lying(change: Callable[[RecordDict], None], kinds: str = "query.describe") -> Callable[[str, Message], Message]:
    def on_reply(name: str, reply: Message) -> Message:
        if name == "south" and reply.metadata.message_type == kinds:
            change(reply.content)
        return reply

    return on_reply


def array_of(values: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content["arrays"] = ArrayRecord({DESCRIPTION: Array(np.asarray(values))})

    return change


def cell(row: int, column: int, value: float) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        told = content.array_records["arrays"][DESCRIPTION].numpy().copy()
        told[row, column] = value
        content["arrays"] = ArrayRecord({DESCRIPTION: Array(told)})

    return change


def config_of(**values: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content["config"] = ConfigRecord({NAME: "south", **values})

    return change


def claims(shape: tuple[int, ...]) -> Callable[[RecordDict], None]:
    """An array that says it is larger than its bytes."""

    def change(content: RecordDict) -> None:
        small = Array(np.zeros((1, 1)))
        data = small.data.replace(b"(1, 1)", repr(shape).encode())
        content["arrays"] = ArrayRecord({DESCRIPTION: Array(small.dtype, shape, small.stype, data)})

    return change


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (cell(0, 3, np.nan), "south: the sums of its columns are not all finite"),
        (cell(0, 2, -3), "south: its report on column 'age' is impossible: it counts -3 numbers"),
        (
            cell(1, 4, -1.0),
            "south: its report on column 'crp' is impossible: 45 numbers have squared deviations of -1",
        ),
        (cell(0, 3, 1e308), "south: its report on column 'age' is impossible: its numbers are too large"),
        (cell(0, 4, 1e308), "south: its report on column 'age' is impossible: its numbers are too large"),
        (cell(3, 2, 4), "south: its report on column 'sex' is impossible"),
        (array_of(np.zeros((4, 60))), r"south: the sums of its columns are float64 of shape \(4, 60\)"),
        (array_of(np.zeros(100_000)), "south: it sent 800128 bytes of arrays, but at most 4288 are accepted"),
        (array_of(np.zeros((4, 6), np.int64)), "south: the sums of its columns are int64"),
        (claims((200_000, 200_000)), "south: it sent an array that cannot be read"),
        (config_of(site="north"), "south: it answers under the name 'north'"),
        (config_of(site=json.dumps([])), "south: it answers under the name"),
        (config_of(problem="x" * 100_000), r"south: x{100,300}$"),
        (config_of(problem="[" * 30_000), "south: "),
    ],
)
def test_statistics_that_cannot_be_are_refused_with_the_sites_name(
    tmp_path: Path, lie: Callable[[RecordDict], None], words: str
) -> None:
    with pytest.raises(FedmmError, match=words):
        run(tmp_path / "server", sites(tmp_path), agreed(), lying(lie))
    assert not (tmp_path / "server" / "runs" / "one" / "encoding.json").exists()


def test_nested_lists_beside_a_description_are_not_looked_at(tmp_path: Path) -> None:
    folder = run(tmp_path / "server", sites(tmp_path), agreed(), lying(config_of(card="[" * 30_000)))
    assert "completed after round 2" in log(folder)


def test_a_row_of_another_shape_is_refused_before_anything_is_made_of_it(tmp_path: Path) -> None:
    card = {"source": True, "target": False, "shape": [200_000, 200_000], "bytes": False, "input_sum": 0.0,
            "input_count": 0}  # fmt: skip
    with pytest.raises(
        FedmmError, match=r"south was turned away: it holds rows of numbers of shape \[200000, 200000\]"
    ):
        run(tmp_path / "server", sites(tmp_path), agreed(), lying(config_of(card=json.dumps(card)), "query"))


def test_classes_are_those_of_the_experiment(tmp_path: Path) -> None:
    config = read_site(write_site(tmp_path, "north", table(1, 60)))
    rows = site_rows(config, agreed(), json.dumps([{"name": "age", "levels": []}]))
    assert rows.classes == len(CLASSES)


# Whose rows they are, and columns that are not looked at --------------------------------------------------------------


def patients(rows: int = 60) -> Any:
    """A table with one to four rows of each patient, in no order."""
    frame = table(1, rows)
    return frame.assign(patient=[f"{(row * 7) % 23:03d}" for row in range(rows)], note="x")


def test_id_and_drop_leave_the_rows_what_they_are_in_one_process(tmp_path: Path) -> None:
    frame = patients()
    told = json.dumps([{"name": "age", "levels": []}, {"name": "crp", "levels": []}])
    usual = read_site(write_site(tmp_path / "usual", "north", frame))
    named = read_site(write_site(tmp_path / "named", "north", frame, id="patient", drop=["note", "comment"]))
    assert np.array_equal(
        describe_table(usual, agreed(), print).arrays[DESCRIPTION],
        describe_table(named, agreed(), print).arrays[DESCRIPTION],
    )
    one, other = (site_rows(config, agreed(), told) for config in (usual, named))
    assert one.source is not None
    assert other.source is not None
    assert torch.equal(one.source.x, other.source.x)
    columns: dict[str, Any] = {
        "numeric": ("age", "crp"),
        "label": "diagnosis",
        "target_sites": ("west",),
        "site": "hospital",
    }
    whole = pandas.concat([frame.assign(hospital="north"), patients(20).assign(hospital="west")])
    whole.to_csv(tmp_path / "whole.csv", index=False)
    drop = ("note", "comment", "ward", "sex")
    pair = Table(file=str(tmp_path / "whole.csv"), scaling="none", id="patient", drop=drop, **columns).load()
    found = {tuple(row) for row in other.source.x.tolist()}
    assert {tuple(row) for row in pair.source.x.tolist()} < found


def rows_of(part: TensorRows) -> list[int]:
    """The numbers of its rows at the site."""
    assert part.index is not None
    return [int(row) for row in part.index]


def test_rows_of_one_patient_are_all_kept_from_training_or_none(tmp_path: Path) -> None:
    frame = patients().assign(age=range(60))
    told = json.dumps([{"name": "age", "levels": []}])
    config = read_site(write_site(tmp_path, "north", frame, id="patient", validation_rows=20))
    rows = site_rows(config, agreed(), told)
    assert rows.source is not None
    assert rows.validation is not None
    whose = dict(zip(frame["age"].tolist(), frame["patient"], strict=True))
    trained, kept = ({whose[int(part.x[row])] for row in rows_of(part)} for part in (rows.source, rows.validation))
    assert not trained & kept
    assert 20 <= len(rows.validation) <= 23
    assert len(rows.source) + len(rows.validation) == 60


def test_where_everybody_has_one_row_the_same_rows_are_kept(tmp_path: Path) -> None:
    frame = table(1, 60).assign(patient=[f"p{row}" for row in range(60)])
    frame.loc[3, "patient"] = None
    told = json.dumps([{"name": "age", "levels": []}])
    kept = []
    for place, more in enumerate(({}, {"id": "patient"})):
        config = read_site(write_site(tmp_path / str(place), "north", frame, validation_rows=20, **more))
        rows = site_rows(config, agreed(), told)
        assert rows.validation is not None
        kept.append(rows_of(rows.validation))
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"id": "age"}, "data.id names 'age', which data.features lists"),
        ({"drop": ["Alter"], "rename": {"Alter": "age"}}, "data.drop names 'Alter', which data.features lists"),
        ({"drop": ["diagnosis"]}, "data.drop names the label column, 'diagnosis'"),
        ({"id": "patient", "drop": ["patient"]}, "data.drop names the column of data.id, 'patient'"),
    ],
)
def test_a_column_has_one_use(tmp_path: Path, more: Any, sentence: str) -> None:
    with pytest.raises(FedmmError, match=sentence):
        read_site(write_site(tmp_path, "north", patients(), **more))


def test_a_column_that_is_not_there_is_named_in_the_sites_own_log(tmp_path: Path) -> None:
    said: list[str] = []
    for key, value in (("id", "pateint"), ("drop", ["nothing"])):
        config = read_site(write_site(tmp_path, "north", patients(), **{key: value}))
        with pytest.raises(FedmmError, match="the site's own log says why"):
            describe_table(config, agreed(), said.append)
        assert f"which data.{key} names" in said[-1]
