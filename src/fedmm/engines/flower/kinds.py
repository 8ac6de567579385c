"""The words of the messages between server and sites. Needs neither torch nor Flower."""

from __future__ import annotations

INTRODUCE, TRAIN = "introduce", "train"
"""What a site can be asked: to say who it is and what it holds, and to work in a round."""

PROBLEM = "problem"
"""Where a site says in words why it cannot answer."""

NAME = "site"
"""Where a site says its name when it introduces itself."""
