from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.data import PARTITIONS
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.partition import (
    BySite,
    Centralised,
    Dirichlet,
    DisjointClasses,
    Iid,
    LabelSorted,
    Partition,
    PSplit,
    Share,
    SourceTarget,
    TargetSupervised,
)
from fedmm.data.splitting import sites_of


def pair_of(source: int, target: int, classes: int = 10) -> DomainPair:
    def part(rows: int) -> Labelled:
        return Labelled(torch.zeros(rows, 1), torch.arange(rows) % classes)

    sites = sites_of([f"site {row % 3}" for row in range(source)], [f"site {row % 2 + 2}" for row in range(target)])
    names = [str(label) for label in range(classes)]
    return DomainPair(part(source), part(target), part(1), part(1), names, sites=sites)


def assert_each_row_once(shares: list[Share], pair: DomainPair) -> None:
    assert torch.cat([share.source for share in shares]).sort().values.tolist() == list(range(len(pair.source.y)))
    assert torch.cat([share.target for share in shares]).sort().values.tolist() == list(range(len(pair.target.y)))
    for share in shares:
        assert len(share.source) + len(share.target) > 0
        assert share.source.dtype == share.target.dtype == torch.int64
    names = [share.name for share in shares]
    assert names == sorted(set(names))


def contents(shares: list[Share]) -> list[tuple[str, list[int], list[int]]]:
    return [(share.name, share.source.tolist(), share.target.tolist()) for share in shares]


def classes_of(rows: Tensor, part: Labelled) -> set[int]:
    return set(part.y[rows].tolist())


clients = st.integers(1, 12)
partitions: st.SearchStrategy[Partition] = st.one_of(
    st.builds(PSplit, st.floats(0.0, 1.0)),
    st.builds(SourceTarget, clients, clients),
    st.builds(Centralised),
    st.builds(BySite),
    st.builds(TargetSupervised),
    st.builds(DisjointClasses, st.integers(1, 10), clients),
    st.builds(Dirichlet, st.floats(0.3, 100.0), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
)


@given(partitions, st.integers(40, 90), st.integers(40, 90), st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_each_row_has_one_owner_and_the_split_is_a_function(
    partition: Partition, source: int, target: int, seed: int
) -> None:
    pair = pair_of(source, target)
    shares = partition.split(pair, seed)
    assert_each_row_once(shares, pair)
    assert contents(shares) == contents(partition.split(pair, seed))


@pytest.mark.parametrize(
    "partition", [PSplit(0.5), SourceTarget(2, 2), DisjointClasses(2, 2), Dirichlet()], ids=lambda row: row.name
)
def test_another_seed_is_another_split(partition: Partition) -> None:
    pair = pair_of(60, 60)
    assert contents(partition.split(pair, 0)) != contents(partition.split(pair, 1))


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_every_row_of_the_table_works_with_its_defaults(name: str) -> None:
    partition = PARTITIONS[name]()
    assert partition.name == name
    assert partition.summary
    pair = pair_of(100, 90)
    assert_each_row_once(partition.split(pair, 3), pair)


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"target_supervised"}))
def test_clients_are_dealt_the_pair_as_it_is(name: str) -> None:
    pair = pair_of(10, 9)
    assert PARTITIONS[name]().seen(pair) is pair


def test_a_centralised_client_holds_everything() -> None:
    (share,) = Centralised().split(pair_of(5, 3), 0)
    assert (share.source.tolist(), share.target.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 2])


def test_the_bound_from_above_sees_the_labelled_target_alone_and_the_tests_as_they_are() -> None:
    pair = pair_of(5, 3)
    seen = TargetSupervised().seen(pair)
    assert seen.source is pair.target
    assert (len(seen.target.x), len(seen.target.y)) == (0, 0)
    assert (seen.target_test, seen.source_test) == (pair.target_test, pair.source_test)
    (share,) = TargetSupervised().split(seen, 0)
    assert (share.source.tolist(), share.target.tolist()) == ([0, 1, 2], [])


def test_p_split_gives_the_shares_of_figure_2() -> None:
    first, second = PSplit(0.9).split(pair_of(1000, 500), 0)
    assert (len(first.source), len(first.target)) == (900, 50)
    assert (len(second.source), len(second.target)) == (100, 450)
    assert (first.name, second.name) == ("client-1", "client-2")


def test_p_split_at_one_is_source_and_target_apart() -> None:
    first, second = PSplit().split(pair_of(30, 20), 0)
    assert (len(first.source), len(first.target), len(second.source), len(second.target)) == (30, 0, 0, 20)


def test_source_target_deals_evenly_under_names_that_sort() -> None:
    shares = SourceTarget(source_clients=11, target_clients=2).split(pair_of(50, 9), 0)
    assert [share.name for share in shares[:2]] == ["source-01", "source-02"]
    assert [share.name for share in shares[-3:]] == ["source-11", "target-1", "target-2"]
    assert {len(share.source) for share in shares[:11]} == {4, 5}
    assert [len(share.target) for share in shares[11:]] == [5, 4]


def test_disjoint_classes_come_in_blocks() -> None:
    pair = pair_of(100, 50)
    low, high, target = DisjointClasses().split(pair, 0)
    assert classes_of(low.source, pair.source) == {0, 1, 2, 3, 4}
    assert classes_of(high.source, pair.source) == {5, 6, 7, 8, 9}
    assert len(target.target) == 50


def test_dirichlet_is_skewed_for_small_alpha_and_even_for_large() -> None:
    pair = pair_of(1000, 1000)
    skewed = Dirichlet(alpha=1e-6).split(pair, 0)
    assert not classes_of(skewed[0].source, pair.source) & classes_of(skewed[1].source, pair.source)
    assert classes_of(skewed[0].source, pair.source) != classes_of(skewed[2].target, pair.target)
    for share in Dirichlet(alpha=1e6).split(pair, 0):
        assert len(share.source) + len(share.target) == 500


def test_dirichlet_holds_min_rows() -> None:
    for seed in range(5):
        for share in Dirichlet(alpha=0.3, min_rows=20).split(pair_of(100, 100), seed):
            assert len(share.source) + len(share.target) >= 20


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PSplit, {"p": 1.1}, "p must be between 0 and 1"),
        (PSplit, {"p": True}, "p must be a number"),
        (SourceTarget, {"source_clients": 0}, "source_clients must be at least 1"),
        (SourceTarget, {"target_clients": 1.5}, "target_clients must be a whole number"),
        (DisjointClasses, {"source_clients": 0}, "source_clients must be at least 1"),
        (DisjointClasses, {"target_clients": 0}, "target_clients must be at least 1"),
        (Dirichlet, {"alpha": 0.0}, "alpha must be between 1e-06 and 1e+06"),
        (Dirichlet, {"source_clients": 0}, "source_clients must be at least 1"),
        (Dirichlet, {"target_clients": 0}, "target_clients must be at least 1"),
        (Dirichlet, {"min_rows": 0}, "min_rows must be at least 1"),
    ],
)
def test_options_refused(kind: type[Partition], options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=re.escape(message)):
        kind(**options)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (SourceTarget(source_clients=21), "source_clients is 21, but the source domain has only 20 training rows"),
        (SourceTarget(target_clients=9), "target_clients is 9, but the target domain has only 8 training rows"),
        (DisjointClasses(source_clients=11), "source_clients is 11, but there are only 10 classes"),
        (DisjointClasses(target_clients=9), "target_clients is 9"),
        (Dirichlet(target_clients=3, min_rows=4), "the 8 target rows are enough for 2 clients with min_rows = 4"),
        (Dirichlet(alpha=1e-6, source_clients=4, min_rows=5), "alpha = 1e-06 left some source client"),
    ],
)
def test_splits_refused(partition: Partition, message: str) -> None:
    with pytest.raises(FedmmError, match=re.escape(message)):
        partition.split(pair_of(20, 8), 0)


def test_a_client_without_rows_is_refused() -> None:
    with pytest.raises(FedmmError, match=re.escape("p = 0.5 leaves client-1 without rows")):
        PSplit(0.5).split(pair_of(1, 1), 0)
    low = pair_of(5, 5)
    with pytest.raises(FedmmError, match="classes 5 to 9 alone, of which the source has no rows"):
        DisjointClasses().split(low, 0)


# By site --------------------------------------------------------------------------------------------------------------


def test_a_client_for_each_site_holds_its_rows_of_both_domains() -> None:
    pair = replace(pair_of(3, 3), sites=sites_of(["Oslo", "Rome", "Oslo"], ["Rome", "Bonn", "Bonn"]))
    assert contents(BySite().split(pair, 0)) == [("Bonn", [], [1, 2]), ("Oslo", [0, 2], []), ("Rome", [1], [0])]


def test_sites_are_called_by_plain_letters_and_never_the_same() -> None:
    names = ["Zürich / West", "a b", "A-B", "10", "9", "..", "\u6771\u4eac", "x" * 200]
    pair = replace(pair_of(8, 8), sites=sites_of(names, names))
    shares = BySite().split(pair, 0)
    assert_each_row_once(shares, pair)
    assert {share.name for share in shares} >= {"Zurich-West", "A-B", "a-b-2", "10", "9", "site", "site-2", "x" * 60}


def test_data_without_sites_cannot_be_dealt_by_them() -> None:
    with pytest.raises(FedmmError, match="by_site needs data that says who holds its rows"):
        BySite().split(replace(pair_of(3, 3), sites=None), 0)


def test_the_bound_from_above_needs_the_labels_of_the_target() -> None:
    pair = pair_of(3, 3)
    unknown = replace(pair, target=Labelled(pair.target.x, torch.tensor([0, -1, 1])))
    with pytest.raises(FedmmError, match="learns from the target's labels, and some of them are not known"):
        TargetSupervised().seen(unknown)


def test_label_sorted_clients_have_one_class_or_two_and_iid_ones_have_all() -> None:
    pair = pair_of(500, 60, classes=2)
    for kind, most in ((LabelSorted(7), 2), (Iid(7), 2)):
        assert_each_row_once(kind.split(pair, 0), pair)
        assert len(kind.split(pair, 0)) == 7
        assert all(len(share.target) in (8, 9) for share in kind.split(pair, 0))
        assert max(len(classes_of(share.source, pair.source)) for share in kind.split(pair, 0)) <= most
    by_client = [classes_of(share.source, pair.source) for share in LabelSorted(7).split(pair, 0)]
    assert by_client.count({0}) == by_client.count({1}) == 3
    assert all(classes_of(share.source, pair.source) == {0, 1} for share in Iid(7).split(pair, 0))
    with pytest.raises(FedmmError, match="clients is 501, but there are only 500 labelled training rows; use 500"):
        LabelSorted(501).split(pair, 0)


@pytest.mark.parametrize(
    "kind", [SourceTarget(2, 1), DisjointClasses(2, 1), Dirichlet(1.0, 2, 1), Iid(2), LabelSorted(2)]
)
def test_a_target_without_rows_has_no_clients(kind: Partition) -> None:
    pair = pair_of(40, 0, classes=2)
    shares = kind.split(pair, 0)
    assert_each_row_once(shares, pair)
    assert len(shares) == 2
