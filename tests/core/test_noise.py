"""Noise is normal, the same for the same question and unrelated for any other, and a secret where it must be one."""

from __future__ import annotations

import stat
from itertools import combinations
from pathlib import Path

import pytest
import torch
from scipy import stats

from fedmm import FedmmError
from fedmm.core.noise import NoiseSource, SecretNoise, SeededNoise
from fedmm.core.seeding import normal

SOURCES = {"seeded": SeededNoise(3), "secret": SecretNoise(bytes(range(32)))}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
SIZE = 40_000
UPDATE = torch.linspace(-1.0, 1.0, SIZE)


@each_source
def test_numbers_are_standard_normal(source: NoiseSource) -> None:
    numbers = source.normal("a", 0, 0, UPDATE)
    assert numbers.dtype == torch.float64
    assert numbers.shape == (SIZE,)
    assert bool(numbers.isfinite().all())
    assert stats.kstest(numbers.numpy(), "norm").pvalue > 0.01
    assert abs(float(numbers.mean())) < 4 / SIZE**0.5
    assert float(numbers.var()) == pytest.approx(1.0, abs=4 * (2 / SIZE) ** 0.5)


@each_source
def test_the_same_question_has_the_same_noise_and_any_other_has_other(source: NoiseSource) -> None:
    questions = [("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1), ("a", 10, 0), ("a", 1, 1)]
    drawn = [source.normal(*question, UPDATE) for question in questions]
    for question, numbers in zip(questions, drawn, strict=True):
        assert torch.equal(source.normal(*question, UPDATE), numbers)
    for one, other in combinations(drawn, 2):
        assert abs(float(one @ other) / SIZE) < 5 / SIZE**0.5


def test_no_two_updates_share_the_noise_of_a_secret() -> None:
    # A server that asks a round again from another point would have the difference of the answers without any noise.
    source = SOURCES["secret"]
    other = UPDATE.clone()
    other[7] += 1e-6
    drawn = source.normal("a", 0, 0, UPDATE)
    assert torch.equal(source.normal("a", 0, 0, UPDATE.clone()), drawn)
    assert abs(float(drawn @ source.normal("a", 0, 0, other)) / SIZE) < 5 / SIZE**0.5


def test_other_seeds_and_secrets_are_other_noise() -> None:
    assert not torch.equal(SeededNoise(0).normal("a", 0, 0, UPDATE[:9]), SeededNoise(1).normal("a", 0, 0, UPDATE[:9]))
    drawn = [
        SecretNoise(*each).normal("a", 0, 0, UPDATE[:9])
        for each in ((bytes(32),), (bytes(range(32)),), (bytes(32), "b"))
    ]
    assert not any(torch.equal(one, other) for one, other in combinations(drawn, 2))


def test_neighbouring_numbers_have_nothing_to_do_with_each_other() -> None:
    numbers = SeededNoise(5).normal("a", 0, 0, UPDATE)
    for lag in (1, 2, 3, 64):
        assert abs(float(numbers[lag:] @ numbers[:-lag]) / SIZE) < 5 / SIZE**0.5


def test_a_stack_of_clients_draws_what_each_would_draw() -> None:
    source = SeededNoise(4)
    keys = torch.tensor([[source.key(name, t) for name in ("a", "b")] for t in range(3)])
    together = normal(keys.unsqueeze(-1), torch.arange(7))
    for t in range(3):
        for place, name in enumerate(("a", "b")):
            assert torch.equal(together[t, place], source.normal(name, t, 0, UPDATE[:7]))


def test_a_secret_is_kept_for_its_owner_alone_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "site" / "noise.key"
    first = SecretNoise.kept_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretNoise.kept_in(path) == first
    assert SecretNoise.kept_in(tmp_path / "other").secret != first.secret
    assert list(path.parent.iterdir()) == [path]
    assert first.secret.hex() not in repr(first)
    assert repr(first.secret) not in repr(first)


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match="at least 32 bytes"):
        SecretNoise(b"short")
    (tmp_path / "torn").write_bytes(b"x")
    with pytest.raises(FedmmError, match="holds 1 bytes, not a secret of 32; remove the file"):
        SecretNoise.kept_in(tmp_path / "torn")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FedmmError, match="the secret for noise cannot be kept in"):
        SecretNoise.kept_in(tmp_path / "file" / "key")
