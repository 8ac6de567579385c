"""A grid in one process whose nodes are real sites, with their files, rows, states and answers but no SuperLink."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from remote.flower.local_grid import LocalGrid, acting_as

from fedmm.core.errors import Say
from fedmm.remote.flower.envelope import to_records
from fedmm.remote.flower.fleet import Question
from fedmm.remote.packed import MESSAGE_TYPES
from fedmm.sites.config import SiteConfig, read_site
from fedmm.sites.node import SiteNode, say_to_stderr
from fedmm.sites.work import SiteWork

UNAVAILABLE = 5
KINDS = {message_type: kind for kind, message_type in MESSAGE_TYPES.items()}


class SitesGrid(LocalGrid):
    """A grid of sites. files: of the sites. dead: by site, how many invitations Flower answers with an error.

    hanging: sites that never answer an invitation. silent: sites that never answer a request to evaluate.
    on_reply: gets a site's name and answer, Flower's records, and returns the answer that the server gets.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        super().__init__()
        self.files = {9000 - 13 * number: file for number, file in enumerate(files)}
        self.dead: dict[str, int] = {}
        self.hanging: set[str] = set()
        self.silent: set[str] = set()
        self.on_reply: Any = lambda name, reply: reply

    def get_node_ids(self) -> list[int]:
        return list(self.files)

    def answered(self, message: Message) -> list[Message]:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        name = self.files[node].stem
        if name in {"train": self.hanging, "evaluate": self.silent}.get(kind, set()):
            return []
        with acting_as(node):
            if self.dead.get(name, 0) > 0 and kind == "train":
                self.dead[name] -= 1
                return [Message(Error(UNAVAILABLE, "Node Unavailable"), reply_to=message)]
            config = read_site(self.files[node])
            say = partial(say_to_stderr, name)
            work = self.work_of(config, say)
            site = SiteNode(config, work, say, threading.Lock(), work.note_refusal)
            answer = site.answer(Question(message, KINDS[kind], 0), node)
            return [self.on_reply(name, Message(to_records(answer), reply_to=message))]

    def work_of(self, config: SiteConfig, say: Say) -> SiteWork:
        """Return a site's work; by default each question meets a newly started process."""
        return SiteWork(config, say)
