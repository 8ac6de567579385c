"""HTML that is escaped by construction: what is not markup already becomes text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_EMPTY = {"img", "input", "meta", "br"}


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Anything as text inside an element."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """``<tag ...>children</tag>``. ``class_`` stands for class, ``data_x`` for data-x; True is an attribute alone.

    Attributes that are None or False are left out.
    """
    given = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        written = name.rstrip("_").replace("_", "-")
        given.append(f" {written}" if value is True else f' {written}="{html.escape(str(value))}"')
    opened = f"<{tag}{''.join(given)}>"
    if tag in _EMPTY:
        return Markup(opened)
    return Markup(f"{opened}{''.join(map(text, children))}</{tag}>")


def joined(parts: Iterable[object]) -> Markup:
    """Parts one after the other."""
    return Markup("".join(map(text, parts)))


def table(
    headings: Sequence[object], rows: Iterable[Sequence[object]], caption: str, *, class_: str = "", numbers: int = 1
) -> Markup:
    """A table in a box of its own that may be scrolled; the first cell of a row heads it.

    numbers: from which column on cells are numbers, set to the right.
    """

    def kind(column: int) -> str | None:
        return "number" if column >= numbers else None

    head = element("tr", *(element("th", each, scope="col", class_=kind(c)) for c, each in enumerate(headings)))
    body = [
        element(
            "tr",
            *(
                element("td" if column else "th", cell, class_=kind(column), scope=None if column else "row")
                for column, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    inner = element(
        "table", element("caption", caption, class_="unseen"), element("thead", head), element("tbody", *body)
    )
    return element("div", inner, class_=f"scroll {class_}".strip(), tabindex="0", role="region", aria_label=caption)
