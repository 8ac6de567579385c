"""Find what is probably wrong with the data of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from fedmm.config.schema import Experiment
from fedmm.core.algorithm import steps_by_client
from fedmm.core.errors import count_of
from fedmm.core.signals.validators import VALIDATORS
from fedmm.data.columns import Column
from fedmm.data.datasets.table import Table
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.labels import UNLABELLED
from fedmm.data.partition import Share
from fedmm.data.readers.tables import texts
from fedmm.data.splitting import count_shared, distinct_share, fingerprints
from fedmm.objectives.auc import AUC
from fedmm.preflight import leaks, table_checks
from fedmm.runs.evidence import SHIFT_ADVICE, shift_of_data

_SHOWN = 5
_IMBALANCE, _FEW_ROWS, _FEW_TESTED = 10, 30, 10
_MIN_ROWS = 20
"""The default of a site's ``policy.min_rows``."""
_RARE = "the objective auc is made for that, and class_weights = 'balanced' of source_only helps"
_LARGEST_TABLE = 300_000_000
"""Total bytes of a table's files up to which they are read again to check columns and cells."""
_LARGE = 50.0
_MOSTLY_DISTINCT = 0.9
_ENOUGH_ROWS = 20


@dataclass(frozen=True)
class DataFindings:
    """Messages for the user."""

    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def check_data(
    experiment: Experiment, pair: DomainPair, dealt: DomainPair, shares: Sequence[Share], *, whole: bool = True
) -> DataFindings:
    """Check the data; dealt: the pair whose rows are dealt to clients; whole: whether all of its rows were loaded."""
    same, shift = _Overlaps(pair), shift_of_data(pair)
    shifted = [f"{shift.sentence(pair.class_names)}; {SHIFT_ADVICE}"] if shift and shift.notable else []
    certain = shift is not None and shift.reliable
    columns, classes = list(_silent_columns(experiment, pair)), leaks.telling_classes(pair)
    warnings = [
        *same.warnings,
        *classes.warnings,
        *leaks.telling_domain(pair),
        *(text for text in columns if not isinstance(text, _Note)),
        *_values(pair),
        *_unheld(experiment, pair),
        *_classes(dealt, shares, experiment),
        *(_sizes(shares, experiment.run.batch_size) if whole else ()),
        *(_check_weighted_sites(shares) if whole and experiment.algorithm.weighs_clients else ()),
        *(_check_tested_sites(pair) if whole and not len(pair.target.y) else ()),
        *(_check_ranked_classes(pair, experiment) if whole and experiment.objective.name == AUC.name else ()),
        *_choices(experiment),
        *(shifted if certain else ()),
    ]
    notes = [
        *same.notes,
        *classes.notes,
        *(text for text in columns if isinstance(text, _Note)),
        *(() if certain else shifted),
        *_labels(pair),
        *(_passes(experiment, shares) if whole else ()),
        *(_at_one_client(dealt, shares) if whole and experiment.objective.name == AUC.name else ()),
        *(_withheld(dealt, shares, experiment) if whole and not len(pair.target.y) else ()),
    ]
    return DataFindings(tuple(warnings), tuple(notes))


class _Note(str):
    """A message that asks for no decision."""


class _Overlaps:
    """Warnings and notes on rows that occur in two parts of the data."""

    def __init__(self, pair: DomainPair) -> None:
        self.warnings: list[str] = []
        self.notes: list[str] = []
        parts = {"source": pair.source, "target": pair.target}
        self._prints = {name: fingerprints(rows.x) for name, rows in parts.items() if len(rows.x)}
        self._look(pair.target_test, "target test", "target", trained_labels=False)
        self._look(pair.target_test, "target test", "source", trained_labels=True)
        self._look(pair.source_test, "source test", "source", trained_labels=True)
        if pair.source_validation is not pair.source_test:
            self._look(pair.source_validation, "source validation", "source", trained_labels=True)
        self._look(pair.target, "target", "source", trained_labels=True)

    def _look(self, rows: Labelled | None, name: str, other: str, *, trained_labels: bool) -> None:
        if rows is None or not len(rows.x) or other not in self._prints:
            return
        prints = self._prints[name] if name in self._prints else fingerprints(rows.x)
        count = count_shared(self._prints[other], prints)
        if not count:
            return
        many = f"{count} of {len(prints)} rows of the {name} set" if " " in name else f"{count} target rows"
        if min(distinct_share(prints), distinct_share(self._prints[other])) < _MOSTLY_DISTINCT:
            self.notes.append(
                f"{many} are like rows of the {other}; many rows are alike in this data, so that says little"
            )
        elif trained_labels:
            self.warnings.append(f"{many} are source rows too, to the bit: labels that are trained on leak into them")
        elif count == len(prints):
            self.notes.append(
                f"the {name} set is target rows that are trained on, without their labels; accuracy is that on known "
                "rows, not on new ones"
            )
        else:
            self.warnings.append(
                f"{many} are trained on too, without their labels: keep test rows out of training, or include all of "
                "them"
            )


def _silent_columns(experiment: Experiment, pair: DomainPair) -> Iterator[str]:
    """Yield warnings and notes on a table's columns and cells, or on constant columns of an array."""
    if pair.input is not None and pair.input.table_columns:
        yield from _table_columns(cast(Table, experiment.data), pair.input.table_columns)
    elif pair.source.x.dim() == 2:
        both = torch.cat([pair.source.x, pair.target.x])
        constant = (both == both[0]).all(dim=0).nonzero().squeeze(1).tolist()
        if constant:
            many = count_of(len(constant), "column says", "columns say")
            yield f"{many} the same in every row: {_some(map(str, constant))}"


def _table_columns(data: Table, columns: Sequence[Column]) -> Iterator[str]:
    files = [Path(path).expanduser() for path in (data.files.values() or [data.file])]
    if sum(path.stat().st_size for path in files) > _LARGEST_TABLE:
        return
    for path in files:
        yield from table_checks.odd_header(path, data.format)
    frame, sites, _, lacking = data.opened()
    inputs = [name for name in frame.columns if name not in data.roles]
    used = {column.name for column in columns}
    constant = [name for name in inputs if name not in used]
    if constant:
        many = count_of(len(constant), "column says", "columns say")
        yield f"{many} the same in every training row, so useless: {_some(constant)}"
    numbered = [name for name in used if _names_rows(frame[name])]
    if numbered:
        yield (
            f"{count_of(len(numbered), 'column holds', 'columns hold')} another whole number in every row, like an id: "
            f"{_some(sorted(numbered))}; name it as data.id or in data.drop"
        )
    alike = [name for name in inputs if name not in data.dates]
    yield from table_checks.unfilled_columns(frame, sites, [name for name in inputs if name in used], lacking)
    yield from table_checks.constant_at_a_site(frame, sites, alike, data.decimal)
    yield from map(_Note, table_checks.odd_cells(frame, alike, data.decimal))
    yield from table_checks.spelt_alike(frame, [data.site, *alike] if data.site else alike, data.most_levels)
    for name in alike:
        if name not in data.categorical and (why := table_checks.numbers_as_words(frame[name], data.decimal)):
            yield f"column {name!r} counts as words: {why}"
    for name, _ in table_checks.dates_as_words(frame, alike):
        yield f"column {name!r} holds dates, which would count as words; list it in data.dates or data.drop"
    for group in table_checks.differing_in_case(texts(frame[data.label])):
        if not data.classes:
            same = ", ".join(f'"{label}" = "{group[-1]}"' for label in group)
            yield (
                f"labels that differ only in capitals or spaces are separate classes: "
                f"{' and '.join(map(repr, group))}; if they are one, name every label in data.classes: {same}, ..."
            )
    if total := table_checks.last_row_is_a_total(frame):
        yield total


def _names_rows(column: Any) -> bool:
    rows = len(column)
    return column.dtype.kind in "iu" and rows >= _ENOUGH_ROWS and column.nunique() == rows


def _values(pair: DomainPair) -> Iterator[str]:
    pictures = pair.source.x.dim() == 4
    highs, deviations = {}, {}
    for name, rows in (("source", pair.source), ("target", pair.target)):
        if rows.x.dtype == torch.uint8 or not len(rows.x):
            continue
        sample = rows.x[:: max(1, len(rows.x) // 2000)].double()
        highs[name] = float(sample.abs().max())
        deviations[name] = float(sample.std(correction=0))
    largest = max(highs.values(), default=0.0)
    if pictures and largest > 2.0:
        yield f"pictures have numbers up to {largest:g}; give bytes (uint8), or divide them by 255"
    elif largest > _LARGE:
        yield f"inputs reach {largest:g}; standardise them, or learning rates will have to be tiny"
    if len(deviations) == 2:
        low, high = sorted(deviations.values())
        if high > _IMBALANCE * max(low, 1e-12):
            yield (
                f"the values of source and target differ in their spread (deviation {deviations['source']:.3g} and "
                f"{deviations['target']:.3g}); are they in the same units?"
            )


def _unheld(experiment: Experiment, pair: DomainPair) -> Iterator[str]:
    """Warn of classes that ``data.classes`` names but no row has."""
    named = dict.fromkeys(experiment.data.classes.values() if isinstance(experiment.data, Table) else ())
    unheld = [name for name in named if name not in pair.class_names]
    if unheld:
        yield f"data.classes names {_some(unheld)}, but no row has {'it' if len(unheld) == 1 else 'them'}"


def _classes(pair: DomainPair, shares: Sequence[Share], experiment: Experiment) -> Iterator[str]:
    if experiment.objective.name == AUC.name:  # made for a rare class, and for clients with a single class
        return
    names = list(pair.class_names)
    counts = torch.bincount(pair.source.y[pair.source.y >= 0], minlength=len(names))
    lacking = [names[k] for k in (counts == 0).nonzero().squeeze(1).tolist()]
    if lacking:
        yield f"the source has no rows of {count_of(len(lacking), 'class', 'classes')}: {_some(lacking)}"
    held = counts[counts > 0]
    if len(held) > 1 and int(held.max()) > _IMBALANCE * int(held.min()):
        few, many = int(counts.masked_fill(counts == 0, int(held.max()) + 1).argmin()), int(counts.argmax())
        yield (
            f"classes of the source are unbalanced: {int(held.max())} rows of {names[many]!r}, {int(held.min())} of "
            f"{names[few]!r}" + (f"; {_RARE}" if len(names) == 2 and not len(pair.target.y) else "")
        )
    poor = []
    for share in shares:
        if len(share.source):
            own = len(set(pair.source.y[share.source].tolist()))
            if own < len(held):
                poor.append(f"{share.name} ({own} of {len(held)})")
    if poor:
        yield f"{count_of(len(poor), 'client lacks', 'clients lack')} classes of the source: {_some(poor)}"


def _sizes(shares: Sequence[Share], batch_size: int) -> Iterator[str]:
    small = [
        f"{share.name} ({len(share.source) + len(share.target)})"
        for share in shares
        if len(share.source) + len(share.target) < batch_size
    ]
    if small:
        yield (
            f"{count_of(len(small), 'client holds', 'clients hold')} fewer rows than a batch of {batch_size}, so rows "
            f"repeat within a batch: {_some(small)}"
        )


def _check_weighted_sites(shares: Sequence[Share]) -> Iterator[str]:
    """Warn of clients with too few rows for their losses to be weighed, and of a single client."""
    if len(shares) == 1:
        yield f"there is only one client, {shares[0].name}, so there is nothing to weigh its loss against"
    few = [f"{share.name} ({held})" for share in shares if (held := len(share.source) + len(share.target)) < _FEW_ROWS]
    if few:
        yield (
            f"{count_of(len(few), 'client has', 'clients have')} fewer than {_FEW_ROWS} rows, so a weight from its "
            f"loss is mostly chance: {_some(few)}; a regulariser keeps the weights together"
        )


def _check_tested_sites(pair: DomainPair) -> Iterator[str]:
    """Warn of sites with too few rows to test on."""
    if pair.sites is None or pair.sites.source_test is None:
        return
    held = pair.sites.source_test
    tested = torch.bincount(held[held >= 0], minlength=len(pair.sites.names)).tolist()
    few = [f"{name} ({rows})" for name, rows in zip(pair.sites.names, tested, strict=True) if rows < _FEW_TESTED]
    if few:
        yield (
            f"{count_of(len(few), 'site has', 'sites have')} fewer than {_FEW_TESTED} rows to test on, so that scores "
            f"of each are mostly chance{', and one without any has none' if 0 in tested else ''}: {_some(few)}"
        )


def _check_ranked_classes(pair: DomainPair, experiment: Experiment) -> Iterator[str]:
    """Warn of classes with too few rows to measure the AUROC."""
    parts = {"test on": (pair.source_test, "held_out"), "choose by": (pair.source_validation, "validation_share")}
    for use, (rows, option) in parts.items():
        larger = f", or a larger data.{option}" if hasattr(experiment.data, option) else ""
        for number, name in enumerate(pair.class_names if rows is not None and len(rows.y) else ()):
            held = int((cast(Labelled, rows).y == number).sum())
            if held < _FEW_TESTED:
                how = "is mostly chance" if held else "cannot be measured"
                yield (
                    f"AUROC {how} with {count_of(held, 'row', 'rows')} of {name!r} among those to {use}; it takes more "
                    f"of them{larger}"
                )


def _at_one_client(pair: DomainPair, shares: Sequence[Share]) -> Iterator[str]:
    """Note classes whose rows are all at one of several clients: whatever is odd about it then predicts the class."""
    for number, name in enumerate(pair.class_names if len(shares) > 1 else ()):
        holders = [share.name for share in shares if bool((pair.source.y[share.source] == number).any())]
        if len(holders) == 1:
            yield (
                f"all rows of {name!r} are at {holders[0]}: a model that recognises this client's rows ranks "
                "well, whether or not it knows the class"
            )


def _choices(experiment: Experiment) -> Iterator[str]:
    for option in ("best_by", "stop_by"):
        name = getattr(experiment.run, option, "")
        if name in VALIDATORS and VALIDATORS[name].oracle:
            yield f"run.{option} = {name!r} chooses with labels of the target: an oracle, which nobody has in practice"


def _labels(pair: DomainPair) -> Iterator[str]:
    if not len(pair.target.y):
        yield "there is no target: the model is tested on held-out source rows"
    elif pair.target_test is None:
        yield "no target labels: target accuracy is not measured, and models are selected by validators that need none"
    known = int((pair.target.y != UNLABELLED).sum())
    if pair.target_test is not None and known:
        yield f"{known} of {len(pair.target.y)} target rows have labels; training never sees them"


def _passes(experiment: Experiment, shares: Sequence[Share]) -> Iterator[str]:
    steps = steps_by_client(experiment.algorithm.steps, [share.name for share in shares])
    run = experiment.run
    passes = [
        run.rounds * run.participation * steps[share.name] * run.batch_size / (len(share.source) + len(share.target))
        for share in shares
    ]
    low, high = min(passes), max(passes)
    times = f"{_short(high)}" if high - low < 0.05 * high else f"{_short(low)} to {_short(high)}"
    yield f"in {run.rounds} rounds a client goes over its rows about {times} times"


def _withheld(pair: DomainPair, shares: Sequence[Share], experiment: Experiment) -> Iterator[str]:
    """Note clients with fewer rows, in all or of a class, than a deployed site by default counts for others."""
    few = []
    for share in shares:
        held = torch.tensor([len(share.source) + len(share.target)])
        if experiment.objective.needs_class_shares:
            held = torch.bincount(pair.source.y[share.source].clamp(min=0))
        if bool(((held > 0) & (held < _MIN_ROWS)).any()):
            few.append(share.name)
    if few:
        by = " of a class, whose share is needed" if experiment.objective.needs_class_shares else ""
        yield (
            f"{count_of(len(few), 'client holds', 'clients hold')} fewer than {_MIN_ROWS} rows{by}: a deployed site "
            f"does not count so few for others, unless its policy.min_rows says so: {_some(few)}"
        )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _some(names: Iterable[str]) -> str:
    return table_checks.list_some(list(names), _SHOWN)
