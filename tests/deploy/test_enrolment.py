"""Who takes part in a run: infos of bad sites, a quorum, and sites that join later."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deploy.grids import SitesGrid
from deploy.test_serving import TABLES, crashing, grid_of, log, served, small
from flwr.app import Message

from fedmm import FedmmError
from fedmm.config.schema import Experiment
from fedmm.deploy import server as serving
from fedmm.deploy.local import same_result
from fedmm.deploy.server import serve
from fedmm.remote.flower.engine import Patience
from fedmm.remote.packed import Malformed, Packed, read_json
from fedmm.sites.experiments import deployed_experiment, listed_sites, require_quorum
from fedmm.sites.site_info import Expected, SiteInfo, read_site_info, site_info_from

GOOD = SiteInfo(True, True, (3, 4), False)
EXPECTED = Expected((3, 4), False, 16)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that are new are met in every round, and asked again at once."""
    quick = {"retry_after": 0.0, "pause": 0.0, "meeting": 0.0}
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, **quick))


# JSON -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 30_000 + "]" * 30_000, "nested more than 8 levels deep"),
        ('{"a":' * 9 + "1" + "}" * 9, "nested more than 8 levels deep"),
        ("[" * 9, "nested more than 8 levels deep"),
        ('"' + "x" * (1 << 16) + '"', "65538 bytes of JSON, but at most 65536 are accepted"),
        ("[NaN]", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("[1" + "0" * 5000 + "]", "is not valid JSON"),
        ('{"a": 1', "is not valid JSON"),
        ("", "is not valid JSON"),
        ('"\ud800', "is not valid JSON"),
        (7, "is not text"),
        (None, "is not text"),
    ],
)
def test_json_of_a_site_is_bounded_before_it_is_parsed(text: object, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        read_json(text, "what it sends")


def test_brackets_inside_of_texts_are_no_depth() -> None:
    value = {"a": "[" * 100 + '"' + "\\" + "{" * 100, "b": [[1, 2.5, True, None]]}
    assert read_json(json.dumps(value), "what it sends") == value
    assert read_json(json.dumps([[[[[[[[1]]]]]]]]), "what it sends") == [[[[[[[[1]]]]]]]]


# What a site says of itself -----------------------------------------------------------------------------------------


def test_a_site_info_travels() -> None:
    info = SiteInfo(True, True, (3, 4), True, 12.5, 24, True, (10, 6))
    assert read_site_info(info.packed("clinic")) == info


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": [200_000] * 9}, "not a list of at most 8 whole numbers"),
        ({"shape": []}, r"have shape \[\]"),
        ({"shape": [3, 0]}, "sizes from 1 to"),
        ({"shape": [3, -4]}, "sizes from 1 to"),
        ({"shape": [3, 1 << 40]}, "sizes from 1 to"),
        ({"shape": [3.0, 4]}, "not a list of at most 8 whole numbers"),
        ({"shape": [True, 4]}, "not a list of at most 8 whole numbers"),
        ({"shape": "34"}, "not a list of at most 8 whole numbers"),
        ({"source": False, "target": False}, "neither source nor target"),
        ({"source": 1}, "whether 'source' is true or false"),
        ({"bytes": None}, "whether 'bytes' is true or false"),
        ({"batch": [1]}, "which must be two numbers"),
        ({"batch": [1, -1]}, "which must be two numbers"),
        ({"batch": [[1], 1]}, "whole numbers"),
        ({"input_sum": "a"}, "not a finite number"),
        ({"input_sum": 10**400}, "not a finite number"),
        ({"input_count": 1.5}, "whole numbers"),
        ({"class_counts": [1.5]}, "whole numbers"),
        ({"class_counts": [3, -1]}, "not numbers of rows"),
    ],
)
def test_a_site_info_with_values_of_the_wrong_kind_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Malformed, match=words):
        site_info_from({**asdict(GOOD), **changes})


@pytest.mark.parametrize("table", [None, [], 3, "card", {}])
def test_what_is_no_site_info_is_refused(table: object) -> None:
    with pytest.raises(Malformed):
        site_info_from(table)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (replace(GOOD, shape=(200_000, 200_000)), r"shape \[200000, 200000\]; the experiment has .* shape \[3, 4\]"),
        (replace(GOOD, bytes=True), "rows of bytes"),
        (replace(GOOD, batch=(16, 0)), "its batches hold 16 and 0 rows"),
        (replace(GOOD, batch=(9, 9)), "its batches hold 9 and 9 rows; the experiment's have 16"),
        (replace(GOOD, target=False, batch=(8, 8)), "its batches hold 8 and 8 rows"),
        (replace(GOOD, source=False, validation=True), "reports validation rows but has no labelled rows"),
        (replace(GOOD, input_sum=1.0, input_count=12), "which the experiment does not ask for"),
        (replace(GOOD, class_counts=(3, 4)), "which the experiment does not ask for"),
    ],
)
def test_a_site_info_that_cannot_be_of_the_experiment_is_refused(info: SiteInfo, words: str) -> None:
    assert not EXPECTED.flaw("a", GOOD)
    assert not EXPECTED.flaw("a", replace(GOOD, batch=(10, 6)))
    assert re.search(words, EXPECTED.flaw("a", info))


@pytest.mark.parametrize("counts", [(), (3, 4), (0, 7), (7,), (0, 0), (1, 2, 3)])
def test_counts_of_classes_have_to_be_possible(counts: tuple[int, ...]) -> None:
    flaw = replace(EXPECTED, classes=2).flaw("a", replace(GOOD, class_counts=counts))
    assert (flaw == "") == (counts in ((), (3, 4), (0, 7)))


@pytest.mark.parametrize(
    ("as_bytes", "total", "count", "right"),
    [
        (True, 6.0, 12, True),
        (True, 12.0, 12, True),
        (True, 12.1, 12, False),
        (True, -0.1, 12, False),
        (False, -1e6, 12, True),
        (False, 1e300, 12, False),
        (False, 1.0, 13, False),
        (False, 1.0, 0, False),
        (False, 1.0, 12 << 60, False),
        (False, 1.0, -12, False),
        (False, 0.0, 0, True),
    ],
)
def test_sums_of_inputs_have_to_be_possible(as_bytes: bool, total: float, count: int, right: bool) -> None:
    expected = replace(EXPECTED, bytes=as_bytes, centred=True)
    info = replace(GOOD, bytes=as_bytes, input_sum=total, input_count=count)
    assert (expected.flaw("a", info) == "") == right


def test_domains_that_the_experiment_lists_are_compared() -> None:
    expected = replace(EXPECTED, domains={"a": "source"})
    assert "the experiment expects only source rows there" in expected.flaw("a", GOOD)
    assert not expected.flaw("b", GOOD)


CARDS: list[tuple[Any, str]] = [
    (lambda info: "[" * 30_000, "is nested more than 8 levels deep"),
    (lambda info: json.dumps({**info, "shape": [200_000, 200_000]}), "the experiment has rows of numbers of shape"),
    (lambda info: json.dumps({**info, "batch": [1, math.inf]}), "Infinity is not a number"),
    (lambda info: json.dumps({**info, "input_sum": math.nan}), "NaN is not a number"),
    (lambda info: json.dumps({**info, "input_sum": 1e250}), "cannot be that of 19008 inputs"),
    (lambda info: "x" * 60_000, "is not valid JSON"),
]


@pytest.mark.parametrize(("spoilt", "words"), CARDS)
def test_a_site_with_a_bad_description_is_refused_and_not_the_run(tmp_path: Path, spoilt: Any, words: str) -> None:
    each = small(run={"rounds": 2})
    grid = grid_of(tmp_path, each)
    spoil_info(grid, "target-1", spoilt)
    with pytest.raises(FedmmError, match=r"target-1 did not come .*; the run needs them \(target-1 was turned away: "):
        serve(grid, served(tmp_path, each, enrol_seconds=0.1))
    assert words in log(tmp_path).splitlines()[-1]
    serve(grid, served(tmp_path, each, min_sites=1))
    assert "completed after round 2" in log(tmp_path)
    assert [row["clients"] for row in rounds(tmp_path)] == [1, 1]


def spoil_info(grid: SitesGrid, site: str, spoilt: Any) -> None:
    def spoil(name: str, reply: Message) -> Message:
        if name == site and reply.metadata.message_type == "query":
            about = reply.content["config"]
            about["card"] = spoilt(json.loads(about["card"]))
        return reply

    grid.on_reply = spoil


def rounds(tmp_path: Path) -> list[dict[str, Any]]:
    text = (tmp_path / "runs" / "one" / "rounds.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def sites_file(tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads((tmp_path / "runs" / "one" / "sites.json").read_text()))


# Quorum ---------------------------------------------------------------------------------------------------------------

FOUR = {"name": "source_target", "source_clients": 2, "target_clients": 2}


class LateGrid(SitesGrid):
    """late: by site, how many invitations others have had when it connects."""

    def __init__(self, files: Any, late: dict[str, int]) -> None:
        super().__init__(files)
        self.late, self.trained = late, 0

    def get_node_ids(self) -> list[int]:
        return [node for node, file in self.files.items() if self.late.get(file.stem, 0) <= self.trained]

    def answered(self, message: Message) -> list[Message]:
        self.trained += message.metadata.message_type == "train"
        return super().answered(message)


def late_grid(tmp_path: Path, each: Experiment, late: dict[str, int]) -> LateGrid:
    grid = grid_of(tmp_path, each)
    return LateGrid(grid.files.values(), late)


def test_a_run_begins_with_a_quorum_and_the_others_join_later(tmp_path: Path) -> None:
    each = small(run={"rounds": 6})
    grid = late_grid(tmp_path, each, {"target-1": 3})
    serve(grid, served(tmp_path, each, min_sites=1))
    counted = [row["clients"] for row in rounds(tmp_path)]
    assert counted[:2] == [1, 1]
    assert counted[-1] == 2
    assert "the run continues without target-1, which may join later; until then no round waits for them" in log(
        tmp_path
    )
    assert "site 'target-1' joins the run, which started without it" in log(tmp_path)
    assert not (tmp_path / "runs" / "one" / "refused.jsonl").exists()
    info = sites_file(tmp_path)["target-1"]
    assert (info["source"], info["target"], info["late"], info["joined"]) == (False, True, True, True)


def test_a_site_that_joins_later_begins_as_one_that_was_never_counted(tmp_path: Path) -> None:
    """The server's state is that of a run in which the site was away from the first round on, to the bit."""
    each = small(run={"rounds": 5}, model={"centre": "none"})
    serve(late_grid(tmp_path / "late", each, {"target-1": 2}), served(tmp_path / "late", each, min_sites=1))
    counted = [row["clients"] for row in rounds(tmp_path / "late")]
    away = grid_of(tmp_path / "away", each)
    asked = iter(counted)

    def answered(message: Message) -> list[Message]:
        if message.metadata.message_type == "train" and away.files[message.metadata.dst_node_id].stem == "target-1":
            return SitesGrid.answered(away, message) if next(asked) == 2 else []
        return SitesGrid.answered(away, message)

    away.answered = answered  # type: ignore[method-assign]
    serve(away, served(tmp_path / "away", each, patience=0.05))
    assert [row["clients"] for row in rounds(tmp_path / "away")] == counted
    states = [serving.checkpoints_of(each.run, tmp_path / name / "runs" / "one") for name in ("late", "away")]
    one, other = (state.load(5, torch.device("cpu"))[0] for state in states)
    assert torch.equal(one.z, other.z)
    assert one.counted == other.counted


@pytest.mark.parametrize("crash_in", [1, 2, 4])
def test_a_site_joins_after_a_resume_too(tmp_path: Path, crash_in: int) -> None:
    each = small(run={"rounds": 6})
    grid = late_grid(tmp_path, each, {"target-1": 2})
    with crashing(crash_in):
        serve(grid, served(tmp_path, each, min_sites=1))
    serve(grid, served(tmp_path, each, min_sites=1, resume=True))
    counted = [row["clients"] for row in rounds(tmp_path)]
    assert counted[0] == 1
    assert counted[-1] == 2
    whole = late_grid(tmp_path / "whole", each, {"target-1": 2})
    serve(whole, served(tmp_path / "whole", each, min_sites=1))
    if counted == [row["clients"] for row in rounds(tmp_path / "whole")]:
        states = [serving.checkpoints_of(each.run, where / "runs" / "one") for where in (tmp_path, tmp_path / "whole")]
        one, other = (state.load(6, torch.device("cpu"))[0] for state in states)
        assert torch.equal(one.z, other.z)


def test_with_all_sites_there_a_quorum_changes_no_bit(tmp_path: Path) -> None:
    each = small()
    serve(grid_of(tmp_path, each), served(tmp_path, each, min_sites=1))
    assert not any(site["late"] for site in sites_file(tmp_path).values())
    assert same_result(each, tmp_path / "runs" / "one", tmp_path / "reference", print)


def test_where_too_few_come_the_reasons_are_told(tmp_path: Path) -> None:
    each = small(partition=FOUR)
    names = list(listed_sites(each))
    grid = grid_of(tmp_path, each)
    spoil_info(grid, names[1], lambda info: "[" * 3000)
    grid.files = {node: file for node, file in grid.files.items() if file.stem in names[:2]}
    words = rf"the run starts with 2 sites, but 1 came \({names[1]} was turned away: .* nested more than 8 levels"
    with pytest.raises(FedmmError, match=words):
        serve(grid, served(tmp_path, each, min_sites=2, enrol_seconds=0.1))


def test_a_site_that_says_itself_why_it_cannot_take_part_counts_as_absent(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    grid = grid_of(tmp_path, each)
    file = next(file for file in grid.files.values() if file.stem == "target-1")
    file.write_text(file.read_text().replace('domain = "target"', 'domain = "source"'))
    serve(grid, served(tmp_path, each, min_sites=1))
    assert "is turned away: the site 'target-1' refuses: data.domain is 'source'" in log(tmp_path)
    assert [row["clients"] for row in rounds(tmp_path)] == [1]


def test_a_late_site_that_holds_other_rows_than_listed_is_turned_away(tmp_path: Path) -> None:
    each = small(run={"rounds": 4})
    grid = late_grid(tmp_path, each, {"target-1": 1})
    spoil_info(grid, "target-1", lambda info: json.dumps({**info, "source": True, "target": False}))
    serve(grid, served(tmp_path, each, min_sites=1))
    assert "it holds other domains (source) than when the run started (target)" in log(tmp_path)
    assert [row["clients"] for row in rounds(tmp_path)] == [1] * 4


def test_a_quorum_needs_to_know_what_the_missing_hold() -> None:
    data = {"name": "sites", "sites": ["a", "b", "c"], "classes": ["x", "y"], "shape": [6]}

    def listed(**more: Any) -> dict[str, str]:
        return listed_sites(deployed_experiment({**TABLES, "data": {**data, **more}}))

    require_quorum(0, listed())
    require_quorum(3, listed())
    with pytest.raises(
        FedmmError, match=r"lets the run begin without b, c, and the experiment does not say .*data\.domains"
    ):
        require_quorum(2, listed(domains={"a": "source"}))
    require_quorum(1, listed(domains={"a": "source", "b": "target", "c": "both"}))
    for wrong in (-1, 4):
        with pytest.raises(FedmmError, match="min_sites must be from 1 to 3"):
            require_quorum(wrong, listed())
    with pytest.raises(FedmmError, match="unknown site in domains 'd'"):
        listed(domains={"d": "source"})
    with pytest.raises(FedmmError, match=r"data\.domains\.a must be one of source, target, both, not 'sauce'"):
        listed(domains={"a": "sauce"})


def test_introductions_hold_as_long_as_the_patience(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    grid = grid_of(tmp_path, each)
    ttls = []
    push = grid.push_messages

    def pushed(messages: Any) -> list[str]:
        messages = list(messages)
        ttls.extend(message.metadata.ttl for message in messages if message.metadata.message_type == "query")
        return push(messages)

    grid.push_messages = pushed  # type: ignore[method-assign]
    serve(grid, served(tmp_path, each, patience=1234.0))
    assert min(ttls) >= 1234.0


def test_a_damaged_list_of_sites_is_named(tmp_path: Path) -> None:
    each = small()
    grid = grid_of(tmp_path, each)
    with crashing(2):
        serve(grid, served(tmp_path, each))
    path = tmp_path / "runs" / "one" / "sites.json"
    for text in ("{", '{"source-1": 3}', "[1]"):
        path.write_text(text)
        with pytest.raises(FedmmError, match=r"sites\.json cannot be read, so the run's sites are unknown"):
            serve(grid, served(tmp_path, each, resume=True))


def test_a_packed_card_without_a_site_info_is_refused() -> None:
    with pytest.raises(Malformed, match="is not text"):
        read_site_info(Packed({}, {"site": "a"}, {}))
