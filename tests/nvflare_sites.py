"""Sites that NVFlare's processes can import: several algorithms on one small federation, each with separate states."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from problems import with_options
from ray_federation import Federation

from fedmm import ALGORITHMS, FedmmError, Terms
from fedmm.engines.in_process import workers
from fedmm.engines.messages import NEVER
from fedmm.engines.server import Server
from fedmm.engines.worker import Kept
from fedmm.remote.durable_store import DurableMemory, state_folder
from fedmm.remote.packed import Packed
from fedmm.remote.site import Site, answer_question

FEDERATION = Federation(2)
ROUNDS = 5


def site(name: str, states: str) -> Callable[[str, Packed], Packed]:
    """Return a client's handler; the kind of a question names the algorithm to use, or the error to raise."""
    problem = FEDERATION.problem()

    @cache
    def working_by(algorithm: str) -> Site:
        server = Server(problem, with_options(ALGORITHMS[algorithm]), ROUNDS, Terms())
        memory = DurableMemory(state_folder(Path(states), algorithm, name))
        memory.remember(NEVER, Kept(server.first_own(), problem.statistics))
        return Site(workers(server)[name], memory, problem.statistics)

    def answer(kind: str, question: Packed) -> Packed:
        if kind == "refuse":
            raise FedmmError(f"{name} does not want to")
        if kind == "fail":
            raise ZeroDivisionError("a bug")
        return answer_question(working_by(kind), problem.layout, question)

    return answer
