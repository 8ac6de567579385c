"""Networks from elsewhere as feature extractors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import generator, labels
from safetensors.torch import save_file
from torch import Tensor, nn

import fedmm
from fedmm.config.dataclass_io import build
from fedmm.core.errors import FedmmError
from fedmm.models import Backbone
from fedmm.models.backbones import ThreeColours
from fedmm.training.adapt import adapt

SHAPE = (3, 8, 8)
MODULE = """
import torch
from torch import nn


def make(width=6, dropout=0.0):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Dropout(dropout))


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5))


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(192, 4)

    def forward(self, x):
        h = self.layer(x.flatten(1))
        return h + torch.rand_like(h) if self.training else h


class Pair(nn.Module):
    def forward(self, x):
        return x, x


def five():
    return 5


def boom():
    raise RuntimeError("it went wrong")


number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which modules lie that may be imported."""
    fedmm.allow_import("own_net", "broken_net", "no_such_net")
    (tmp_path / "own_net.py").write_text(MODULE)
    (tmp_path / "broken_net.py").write_text("import nothing_of_that_name")
    monkeypatch.chdir(tmp_path)
    for name in ("own_net", "broken_net"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def refusal(shape: tuple[int, ...] = SHAPE, **options: Any) -> str:
    with pytest.raises(FedmmError) as refused:
        Backbone(**options).build(shape, 2, 0)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def trained(model: Backbone, shape: tuple[int, ...] = SHAPE) -> fedmm.Adapted:
    rows = torch.rand(6, *shape, generator=generator(0))
    client = fedmm.Client(source=(rows, labels(0, 6) % 2), target=rows.flip(0), name="site")
    return adapt([client], model.build(shape, 2, 0), rounds=1, batch_size=4)


def test_a_module_of_the_current_folder_is_a_backbone(own: Path) -> None:
    before = list(sys.path)
    model = Backbone(backbone="own_net:make", options={"width": 7, "dropout": 0.5}, bottleneck=4)
    adapted = trained(model)
    assert sys.path == before
    assert adapted.features(torch.rand(2, *SHAPE)).shape == (2, 4)
    assert "features.backbone.1.weight" in adapted.tensors()
    assert adapted.tensors()["features.backbone.1.weight"].shape == (7, 192)


def test_its_weights_follow_the_seed(own: Path) -> None:
    def weight(seed: int) -> Tensor:
        return Backbone(backbone="own_net:make").build(SHAPE, 2, seed).features.backbone[1].weight  # type: ignore[union-attr,index,return-value]

    assert torch.equal(weight(0), weight(0))
    assert not torch.equal(weight(0), weight(1))


def test_layers_that_find_their_width_and_no_bottleneck(own: Path) -> None:
    adapted = trained(Backbone(backbone="own_net:lazy", bottleneck=0))
    assert adapted.features(torch.rand(2, *SHAPE)).shape == (2, 5)


def test_frozen_parts_are_no_part_of_what_is_sent(own: Path) -> None:
    model = Backbone(backbone="own_net:make", frozen=("1.weight",), batch_norm="frozen")
    names = [name for name, p in model.build(SHAPE, 2, 0).features.named_parameters() if not p.requires_grad]
    assert names == ["backbone.1.weight"]
    whole = Backbone(backbone="own_net:make", frozen=("*",), batch_norm="frozen").build(SHAPE, 2, 0)
    assert [n for n, p in whole.features.named_parameters() if p.requires_grad] == [
        "bottleneck.weight",
        "bottleneck.bias",
    ]


@pytest.mark.parametrize("kind", ["safetensors", "pt", "nested.pth"])
def test_weights_of_a_file_without_those_of_a_classifier(own: Path, kind: str) -> None:
    start = {"1.weight": torch.ones(6, 192), "1.bias": torch.ones(6), "fc.weight": torch.ones(3, 6)}
    path = own / f"w.{kind}"
    if kind == "safetensors":
        save_file(start, path)
    else:
        torch.save({"state_dict": start} if kind.startswith("nested") else start, path)
    network = Backbone(backbone="own_net:make", weights=path.name).build(SHAPE, 2, 0)
    assert bool((network.features.get_parameter("backbone.1.weight") == 1).all())
    untrained = Backbone(backbone="own_net:make", weights="gone.pt").untrained()
    assert untrained == Backbone(backbone="own_net:make")


def test_weights_that_do_not_fit_are_refused(own: Path) -> None:
    save_file({"1.weight": torch.ones(6, 192)}, own / "w.safetensors")
    assert "weights of 'own_net:make': Error(s) in loading" in refusal(backbone="own_net:make", weights="w.safetensors")
    (own / "text.pt").write_text("no weights")
    for name in ("text.pt", "gone.safetensors"):
        assert f"{name} cannot be read as weights" in refusal(backbone="own_net:make", weights=name)


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        ("own_net", "backbone must be 'timm:NAME', 'torchvision:NAME' or 'package.module:factory'"),
        ("own_net:mak", "own_net has no 'mak'; did you mean 'make'?"),
        ("own_net:number", "is int, not a function"),
        ("own_net:five", "made an object of type int; it must be an nn.Module"),
        ("own_net:boom", "cannot be made with these options: it went wrong"),
        ("own_net:Pair", "must map [rows, ...] to a tensor of features"),
        ("broken_net:make", "the module 'broken_net' cannot be imported: No module named 'nothing_of_that_name'"),
        ("no_such_net:make", "the module 'no_such_net' cannot be imported"),
        ("..:make", "must have the form 'package.module:factory'"),
        ("own_net:nn.Linear", "must have the form 'package.module:factory'"),
        ("own_net:__loader__", "not a function"),
    ],
)
def test_what_is_no_backbone_is_refused_in_one_sentence(own: Path, backbone: str, words: str) -> None:
    assert words in refusal(backbone=backbone)


def test_rows_that_it_does_not_take_are_refused(own: Path) -> None:
    assert "does not take rows of shape [5]" in refusal((5,), backbone="own_net:make")
    assert "for pictures of 3 channels" in refusal((5,), backbone="own_net:lazy", normalise="imagenet")
    assert "frozen names 'layer', no part of" in refusal(
        backbone="own_net:make", frozen=("layer",), batch_norm="frozen"
    )
    assert "pretrained is for timm and torchvision" in refusal(backbone="own_net:make", pretrained=True)


def test_a_backbone_that_draws_random_numbers_of_its_own_is_refused(own: Path) -> None:
    with pytest.raises(FedmmError, match="draws random numbers of its own"):
        trained(Backbone(backbone="own_net:Random"))


@pytest.mark.parametrize(
    "options",
    [
        {"pretrained": True, "weights": "w.pt"},
        {"frozen": ["layer1"]},
        {"weights": "w.pt", "initialisation": "truncated_normal"},
        {"bottleneck": -1},
        {"options": {"a": [1]}},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(FedmmError):
        build(Backbone, options, "model")


# Libraries ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("hf-hub:someone/network", {}, "must name one of the library's own networks"),
        ("local-dir:/somewhere", {}, "must name one of the library's own networks"),
        ("resnet18", {"checkpoint_path": "evil.pth"}, "options.checkpoint_path of"),
        ("resnet18", {"cache_dir": "here"}, "options.cache_dir of"),
        ("resnet18", {"pretrained_cfg": "hub"}, "options.pretrained_cfg of"),
        ("resnet18", {"weights": "DEFAULT"}, "options.weights of"),
    ],
)
def test_a_librarys_network_reads_no_file_that_its_options_name(
    library: str, name: str, options: dict[str, Any], words: str
) -> None:
    assert words in refusal(backbone=f"{library}:{name}", options=options)


def test_words_choose_the_layers_of_a_network_of_timm() -> None:
    pytest.importorskip("timm", reason="it needs fedmm[timm]")
    features = Backbone(backbone="timm:test_resnet", options={"act_layer": "gelu"}).build((3, 32, 32), 2, 0).features
    assert any("gelu" in type(layer).__name__.lower() for layer in features.modules())
    for option in ("act_layer", "norm_layer", "global_pool"):
        assert "cannot be made" in refusal(backbone="timm:test_resnet", options={option: "os.system"})


def test_networks_of_timm_by_their_names() -> None:
    pytest.importorskip("timm", reason="it needs fedmm[timm]")
    model = Backbone(backbone="timm:test_resnet", bottleneck=4, frozen=("conv1",), batch_norm="frozen")
    features = model.build((3, 32, 32), 2, 0).features
    assert isinstance(features, nn.Sequential)
    assert [name for name, _ in features.named_children()] == ["normalise", "backbone", "flatten", "bottleneck", "relu"]
    grey = Backbone(backbone="timm:test_resnet").build((1, 32, 32), 2, 0).features
    assert grey(torch.rand(2, 1, 32, 32)).shape == (2, 256)
    assert "timm has no network 'test_resnot'; did you mean 'test_resnet'" in refusal(backbone="timm:test_resnot")
    assert "does not take rows of shape [5]" in refusal((5,), backbone="timm:test_resnet")
    assert "cannot be made with these options" in refusal(backbone="timm:test_resnet", options={"wings": 2})


def test_networks_of_torchvision_by_their_names() -> None:
    pytest.importorskip("torchvision", reason="it needs fedmm[vision]")
    name = "torchvision:shufflenet_v2_x0_5"
    adapted = trained(Backbone(backbone=name), (3, 32, 32))
    assert not any("fc" in tensor for tensor in adapted.tensors())
    features = Backbone(backbone=name).build((1, 32, 32), 2, 0).features
    assert isinstance(features.get_submodule("colours"), ThreeColours)
    assert features(torch.rand(2, 1, 32, 32)).shape == (2, 256)
    assert "torchvision has no network 'resnet19'; did you mean 'resnet18'" in refusal(backbone="torchvision:resnet19")
    assert "has no linear classifier" in refusal(backbone="torchvision:squeezenet1_0")
