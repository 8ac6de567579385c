"""The scikit-learn estimator: what scikit-learn itself asks of one, skada's domains, and searches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedmm
from fedmm.sklearn import FederatedAdapter

QUICK: dict[str, Any] = {"rounds": 3, "local_steps": 8, "lr": 0.3, "hidden": (8,), "batch_size": 16, "random_state": 0}


@parametrize_with_checks([FederatedAdapter(**QUICK)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)


def shifted(rows: int = 120) -> tuple[np.ndarray[Any, Any], ...]:
    """Two sources and a target of two clusters; the target's are shifted. X, the true y, and the domains 1, 2, -3."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, rows)
    domains = np.repeat([1, 2, -3], rows // 3)
    X = random.normal(size=(rows, 2)) * 0.5 + np.where(y[:, None] == 1, [2.0, 0.0], [-2.0, 0.0])
    X[domains == -3] += [0.5, 1.0]
    return X, y, domains


X, Y, DOMAINS = shifted()
MASKED = np.where(DOMAINS < 0, -1, Y)


def fitted(y: Any = MASKED, domains: Any = DOMAINS, x: Any = X, **options: Any) -> FederatedAdapter:
    return FederatedAdapter(**QUICK | options).fit(x, y, sample_domain=domains)


def test_every_domain_is_a_client_and_the_target_is_adapted_to() -> None:
    model = fitted(rounds=10)
    assert sorted(model.adapted_.state.clients) == ["source 1", "source 2", "target 3"]
    assert "dann" in repr(model.adapted_)
    assert model.score(X[DOMAINS < 0], Y[DOMAINS < 0]) > 0.9


def test_it_is_adapt_with_a_client_for_each_domain() -> None:
    model = fitted(algorithm=fedmm.FedMM(0.1, 0.1), objective=fedmm.CDAN(), lr=None, local_steps=None, random_state=3)
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    x = X.astype(np.float32)
    again = fedmm.adapt(
        [
            fedmm.Client((x[DOMAINS == 1], Y[DOMAINS == 1]), name="source 1"),
            fedmm.Client((x[DOMAINS == 2], Y[DOMAINS == 2]), name="source 2"),
            fedmm.Client(target=x[DOMAINS == -3], name="target 3"),
        ],
        model._network(2, 2, seed),
        fedmm.CDAN(),
        fedmm.FedMM(0.1, 0.1),
        3,
        batch_size=16,
        seed=seed,
        progress=False,
    )
    assert torch.equal(model.adapted_.state.z, again.state.z)
    assert np.array_equal(model.predict_proba(X), again.predict_proba(x))


@pytest.mark.parametrize(
    "y",
    [
        np.where(DOMAINS < 0, 1 - Y, Y),
        np.where(DOMAINS < 0, np.nan, Y),
        pd.Series(np.where(DOMAINS < 0, None, Y)),
    ],
    ids=["others", "NaN", "None"],
)
def test_labels_of_target_rows_are_not_looked_at(y: Any) -> None:
    assert np.array_equal(fitted(y).predict_proba(X), fitted().predict_proba(X))


@pytest.mark.parametrize("mask", [-1, np.nan, None])
def test_without_domains_rows_without_a_label_are_the_target(mask: Any) -> None:
    two = np.where(DOMAINS < 0, -2, 1)
    y = np.where(DOMAINS < 0, mask, Y)
    assert np.array_equal(fitted(y, None).predict_proba(X), fitted(domains=two).predict_proba(X))


def test_minus_one_and_one_other_label_are_two_classes() -> None:
    model = fitted(np.where(Y == 1, 1, -1), None)
    assert model.classes_.tolist() == [-1, 1]
    assert "source_only" in repr(model.adapted_)


def test_words_come_back() -> None:
    words = np.array(["cat", "dog"])[Y]
    model = fitted(words)
    assert set(model.predict(X)) == {"cat", "dog"}
    assert model.score(X, words) > 0.8


def test_a_score_leaves_out_rows_that_are_masked() -> None:
    model = fitted()
    known = DOMAINS >= 0
    assert model.score(X, MASKED) == model.score(X[known], Y[known])


def test_a_module_or_a_network_may_be_given() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh())
    one, other = fitted(model=module), fitted(model=fedmm.Network(module, 2))
    assert np.array_equal(one.predict_proba(X), other.predict_proba(X))
    assert np.array_equal(clone(one).fit(X, MASKED, DOMAINS).predict_proba(X), one.predict_proba(X))


def test_one_random_state_is_one_result() -> None:
    assert np.array_equal(fitted().predict_proba(X), fitted().predict_proba(X))
    assert not np.array_equal(fitted().predict_proba(X), fitted(random_state=1).predict_proba(X))


def test_a_grid_is_searched_with_the_domains_of_each_fold() -> None:
    search = GridSearchCV(FederatedAdapter(**QUICK), {"nu": [0.1, 1.0], "rounds": np.array([1, 2])}, cv=2)
    search.fit(X, MASKED, sample_domain=DOMAINS)
    assert set(search.best_params_) == {"nu", "rounds"}
    assert sorted(search.best_estimator_.adapted_.state.clients) == ["source 1", "source 2", "target 3"]
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_cross_validation_and_pipelines_hand_the_domains_on() -> None:
    pipeline = make_pipeline(StandardScaler(), FederatedAdapter(**QUICK))
    pipeline.fit(X, MASKED, federatedadapter__sample_domain=DOMAINS)
    assert "dann" in repr(pipeline[-1].adapted_)
    scores = cross_val_score(FederatedAdapter(**QUICK), X, MASKED, cv=2, params={"sample_domain": DOMAINS})
    assert (scores > 0.5).all()


def test_domains_are_metadata_that_can_be_routed() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        routed = FederatedAdapter(**QUICK).set_fit_request(sample_domain=True)
        pipeline = make_pipeline(StandardScaler(), routed).fit(X, MASKED, sample_domain=DOMAINS)
    assert "dann" in repr(pipeline[-1].adapted_)


def test_frames_keep_the_names_of_their_columns() -> None:
    model = fitted(x=pd.DataFrame(X, columns=["a", "b"]))
    assert model.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pd.DataFrame(X, columns=["b", "a"]))


def test_it_hides_neither_scikit_learn_nor_itself() -> None:
    assert fedmm.sklearn.FederatedAdapter is FederatedAdapter
    assert sklearn.__name__ == "sklearn"
