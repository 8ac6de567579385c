"""The paper's hyperparameters, as its text states them and as its published program has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import fedmm
from fedmm import ALGORITHMS, MDD, OBJECTIVES, Client, FedmmError
from fedmm.config.presets import preset, preset_tables
from fedmm.config.schema import experiment
from fedmm.core.options import PRESETS
from fedmm.models import FlatNetwork, MobileNetV2
from fedmm.models.dropout import SeededDropout
from fedmm.models.network import AdversarialModule

ADVERSARIAL = ["dann", "cdan", "mdd"]
DATA = ["mnist_m", "office31"]

each_preset = pytest.mark.parametrize("name", PRESETS)
each_objective = pytest.mark.parametrize("objective", ADVERSARIAL)
each_data = pytest.mark.parametrize("data", DATA)


def tables(name: str, objective: str = "dann", data: str = "mnist_m", algorithm: str = "fedmm") -> dict[str, Any]:
    return preset_tables(name, objective=objective, algorithm=algorithm, data=data)


# The table of differences, row by row ---------------------------------------------------------------------------------


@each_objective
@each_data
@pytest.mark.parametrize(("name", "penalty"), [("paper", 1.0), ("authors", 2.0)])
def test_penalties_are_1_in_the_text_and_2_in_the_program(name: str, penalty: float, objective: str, data: str) -> None:
    for algorithm in ("fedmm", "fedprox_gda"):
        table = tables(name, objective, data, algorithm)["algorithm"]
        assert (table["penalty_min"], table["penalty_max"]) == (penalty, penalty)


@each_data
@pytest.mark.parametrize(("objective", "growth"), [("dann", 1.0005), ("cdan", 1.0002), ("mdd", 1.0001)])
def test_the_duals_share_decays_alike_in_both_to_rounding(objective: str, growth: float, data: str) -> None:
    assert tables("paper", objective, data)["algorithm"]["dual_decay"] == 1 / growth
    # The program divides by 1.05, 1.02 or 1.01 once in a hundred rounds.
    hundred = tables("authors", objective, data)["algorithm"]["dual_decay"] ** 100
    assert hundred == pytest.approx(1 / {"dann": 1.05, "cdan": 1.02, "mdd": 1.01}[objective], abs=1e-12)
    assert tables("authors", objective, data)["algorithm"]["dual_decay"] == pytest.approx(1 / growth, abs=2e-5)


@each_objective
@each_preset
def test_both_rates_are_a_hundredth_on_mnist_m(name: str, objective: str) -> None:
    table = tables(name, objective)["algorithm"]
    assert (table["lr_min"], table["lr_max"]) == (0.01, 0.01)


@pytest.mark.parametrize(("objective", "nu"), [("dann", 1.0), ("cdan", 1.0), ("mdd", 0.5)])
def test_the_program_divides_the_adversarys_loss_gradient_by_nu_on_mnist_m(objective: str, nu: float) -> None:
    table = tables("authors", objective)["objective"]
    assert table == {
        "name": objective,
        "nu": nu,
        "gradient_scale": {"features": 1.0, "task_head": 1.0, "adversary": 1 / nu},
    }
    assert tables("paper", objective)["objective"] == {"name": objective, "nu": nu}


@pytest.mark.parametrize(("objective", "nu"), [("dann", 0.25), ("cdan", 0.25), ("mdd", 0.1)])
@each_preset
def test_nu_on_office_31_is_the_same_in_both(name: str, objective: str, nu: float) -> None:
    assert tables(name, objective, "office31")["objective"]["nu"] == nu


@pytest.mark.parametrize(("objective", "lr_max"), [("dann", 0.04), ("cdan", 0.1), ("mdd", 0.1)])
def test_the_text_has_rates_of_their_own_for_backbone_and_adversary_on_office_31(objective: str, lr_max: float) -> None:
    table = tables("paper", objective, "office31")
    assert table["algorithm"]["lr_min"] == {"features.backbone": 0.0005, "*": 0.01}
    assert table["algorithm"]["lr_max"] == lr_max
    assert "gradient_scale" not in table["objective"]


@pytest.mark.parametrize(("objective", "nu"), [("dann", 0.25), ("cdan", 0.25), ("mdd", 0.1)])
def test_the_program_scales_loss_gradients_instead_on_office_31(objective: str, nu: float) -> None:
    table = tables("authors", objective, "office31")
    assert (table["algorithm"]["lr_min"], table["algorithm"]["lr_max"]) == (0.01, 0.01)
    scale = {"features.backbone": 0.05, "adversary": 1 / (nu + 0.01), "*": 1.0}
    assert table["objective"]["gradient_scale"] == scale


@each_objective
@each_data
@each_preset
def test_a_batch_has_64_rows_and_a_round_20_steps(name: str, objective: str, data: str) -> None:
    table = tables(name, objective, data)
    assert table["run"]["batch_size"] == 64
    assert table["algorithm"]["local_steps"] == 20


@pytest.mark.parametrize("objective", ["dann", "cdan"])
@each_preset
def test_the_network_is_the_programs(name: str, objective: str) -> None:
    model = preset(name, objective=objective).model
    assert model.name == "paper_cnn"
    assert (model.task_hidden, model.adversary_hidden, model.head_dropout) == ((100, 100), (100,), 0.0)
    assert model.initialisation == "truncated_normal"


def test_the_programs_heads_for_mdd_are_wider_and_have_dropout() -> None:
    model = preset("authors", objective="mdd").model
    assert (model.task_hidden, model.head_dropout) == ((200, 200), 0.5)


@each_objective
@pytest.mark.parametrize(("name", "centre"), [("paper", "train_mean"), ("authors", "batch_mean")])
def test_only_the_program_centres_by_the_mean_of_the_batch(name: str, centre: str, objective: str) -> None:
    assert tables(name, objective)["model"]["centre"] == centre


@each_objective
@pytest.mark.parametrize(("name", "dropout"), [("paper", 0.0), ("authors", 0.5)])
def test_on_office_31_the_network_is_mobilenet_with_two_layer_heads(name: str, dropout: float, objective: str) -> None:
    model = preset(name, objective=objective, data="office31").model
    assert isinstance(model, MobileNetV2)
    assert (model.weights, model.normalise, model.centre) == ("imagenet", "imagenet", "none")
    assert (model.bottleneck, model.bottleneck_dropout, model.head_dropout) == (1024, dropout, dropout)
    assert len(model.task_hidden) == len(model.adversary_hidden) == 1


@each_preset
@each_objective
def test_the_groups_of_office_31_are_those_of_its_network(name: str, objective: str) -> None:
    pytest.importorskip("torchvision")
    given = preset(name, objective=objective, data="office31")
    small = replace(given.model, weights="", bottleneck=8, task_hidden=(4,), adversary_hidden=(4,))  # type: ignore[call-arg]
    network = small.build((3, 8, 8), 3, 0)
    function = FlatNetwork(network, given.objective, torch.zeros(2, 3, 8, 8), seed=0)
    rates = given.algorithm.coefficients(function.layout, 0, 1)
    scale = function.layout.join_all(given.objective.gradient_scale)
    parts = {block.name: part for block, part in function.layout.tensors(scale.expand(function.layout.size))}
    assert rates is not None
    assert float(parts["features.backbone.0.0.weight"].mean()) == pytest.approx(0.05 if name == "authors" else 1.0)
    assert set(parts["features.bottleneck.weight"].flatten().tolist()) == {1.0}


@each_objective
def test_the_programs_dropout_on_office_31_is_in_bottleneck_and_heads_and_evaluation_multiplies_by_nothing(
    objective: str,
) -> None:
    pytest.importorskip("torchvision")
    given = preset("authors", objective=objective, data="office31")
    small = replace(given.model, weights="", bottleneck=8, task_hidden=(4,), adversary_hidden=(4,))  # type: ignore[call-arg]
    plain = replace(small, bottleneck_dropout=0.0, head_dropout=0.0)  # type: ignore[call-arg]
    rows = torch.rand(2, 3, 8, 8)
    module, same = (
        AdversarialModule(model.build((3, 8, 8), 3, 0), given.objective, rows, seed=0) for model in (small, plain)
    )
    dropped = {
        name.partition(".")[0]: layer.p for name, layer in module.named_modules() if isinstance(layer, SeededDropout)
    }
    assert dropped == {"features": 0.5, "task_head": 0.5, "adversary": 0.5}
    for found, expected in zip(module.eval()(rows), same.eval()(rows), strict=True):
        assert torch.equal(found, expected)
    assert not torch.equal(module.train()(rows).logits, same.train()(rows).logits)


@each_preset
def test_mdd_has_the_programs_margin_and_epsilon(name: str) -> None:
    objective = preset(name, objective="mdd").objective
    assert isinstance(objective, MDD)
    assert (objective.gamma, objective.epsilon) == (1.0, 1e-5)


@each_preset
def test_cdan_does_not_detach_its_softmax(name: str) -> None:
    objective = preset(name, objective="cdan").objective
    assert not objective.detach_softmax  # type: ignore[attr-defined]
    assert objective.random_dim == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("objective", "rounds"), [("dann", 15_000), ("cdan", 30_000), ("mdd", 50_000)])
def test_the_programs_number_of_rounds_on_mnist_m(objective: str, rounds: int) -> None:
    assert tables("authors", objective)["run"]["rounds"] == rounds


@each_objective
def test_the_program_says_nothing_of_rounds_on_office_31(objective: str) -> None:
    assert "rounds" not in tables("authors", objective, "office31")["run"]


# For every row --------------------------------------------------------------------------------------------------------


@each_preset
@each_data
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_and_objective_has_its_preset(name: str, data: str, objective: str, algorithm: str) -> None:
    built = preset(name, objective=objective, algorithm=algorithm, data=data)
    assert (built.objective.name, built.algorithm.name, built.batch_size) == (objective, algorithm, 64)


@each_preset
def test_an_algorithm_gets_the_options_it_has(name: str) -> None:
    assert set(tables(name, algorithm="fedsgda")["algorithm"]) == {"name", "lr_min", "lr_max"}
    assert set(tables(name, algorithm="fedavg_gda")["algorithm"]) == {"name", "lr_min", "lr_max", "local_steps"}


@each_preset
def test_source_only_has_no_adversary_to_scale(name: str) -> None:
    assert tables(name, "source_only")["objective"] == {"name": "source_only"}


@pytest.mark.parametrize("what", ["objective", "algorithm"])
def test_an_unknown_row_is_refused(what: str) -> None:
    with pytest.raises(FedmmError, match=f"^unknown {what} 'nonsense'"):
        preset("paper", **{what: "nonsense"})


def test_an_unknown_preset_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(FedmmError, match=r"^unknown preset 'author'; did you mean 'authors'"):
        preset("author")


def test_a_preset_can_be_handed_to_adapt() -> None:
    given = preset("paper")
    x = torch.linspace(0, 1, 4 * 3 * 8 * 8).view(4, 3, 8, 8)
    clients = [Client(source=(x, torch.arange(4))), Client(target=1 - x)]
    network = replace(given.model, task_hidden=(4,), adversary_hidden=(4,)).build((3, 8, 8), 4, 0)
    algorithm = replace(given.algorithm, local_steps=1)  # type: ignore[call-arg]
    adapted = fedmm.adapt(clients, network, given.objective, algorithm, 1, batch_size=given.batch_size, progress=False)
    assert adapted.status == "completed"


# In a file ------------------------------------------------------------------------------------------------------------


def from_file(name: str, **sections: dict[str, Any]) -> Any:
    given = {
        "run": {"preset": name},
        "data": {"name": "digits"},
        "objective": {"name": "cdan"},
        "algorithm": {"name": "fedmm"},
    }
    return experiment({**given, **sections})


@each_preset
def test_a_file_that_names_a_preset_gets_its_values(name: str) -> None:
    given, built = from_file(name), preset(name, objective="cdan", data="digits")
    assert (given.algorithm, given.objective, given.model) == (built.algorithm, built.objective, built.model)
    assert given.run.batch_size == 64
    assert given.run.preset == name
    assert given.run.rounds == {"paper": 200, "authors": 30_000}[name]


@each_preset
def test_the_files_own_keys_win(name: str) -> None:
    given = from_file(
        name,
        run={"preset": name, "rounds": 7, "batch_size": 8},
        model={"centre": "none"},
        objective={"name": "cdan", "nu": 0.75, "gradient_scale": 2.0},
        algorithm={"name": "fedmm", "penalty_min": 4.0},
    )
    assert (given.run.rounds, given.run.batch_size) == (7, 8)
    assert (given.model.name, given.model.centre) == ("paper_cnn", "none")
    assert (given.objective.nu, given.objective.gradient_scale) == (0.75, 2.0)
    penalties = {"paper": 1.0, "authors": 2.0}
    assert (given.algorithm.penalty_min, given.algorithm.penalty_max) == (4.0, penalties[name])


@each_preset
def test_another_model_than_the_presets_has_its_own_defaults(name: str) -> None:
    given = from_file(name, model={"name": "small_cnn"})
    assert given.model == experiment({**given.tables(), "run": {}, "model": {"name": "small_cnn"}}).model


@each_preset
def test_the_resolved_file_of_a_preset_gives_the_same_experiment(name: str) -> None:
    given = from_file(name, algorithm={"name": "fedprox_gda", "penalty_min": 4.0})
    assert experiment(given.tables()) == given
