"""The words of the messages between server and sites. Needs neither torch nor Flower."""

from __future__ import annotations

INTRODUCE, DESCRIBE, TRAIN, MEASURE = "introduce", "describe", "train", "measure"
"""What a site can be asked: who it is and what it holds, to describe the columns of its table by sums, to work in a
round, and to measure a model on its own rows."""

CONFIRM, OPEN = "confirm", "open"
"""Where updates are masked: whose their sum is of, and to open it."""

MESSAGE_TYPES = {
    INTRODUCE: "query",
    DESCRIBE: "query.describe",
    TRAIN: "train",
    MEASURE: "evaluate",
    CONFIRM: "query.confirm",
    OPEN: "query.open",
}
"""Flower's type of the message that asks it."""

PROBLEM = "problem"
"""Where a site says in words why it cannot answer."""

FINAL = "final"
"""Where a site says that the same question would be refused again."""

NAME = "site"
"""Where a site says its name when it introduces itself."""
