"""Networks from elsewhere as feature extractors."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.batched.stacks import Run, advanced, assert_agrees, referred, stacked, vectors
from problems import CLASSES, generator, labels
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedmm
from fedmm import FedMM, FedmmError, load_model
from fedmm.config.dataclass_io import build
from fedmm.core.files import data_folder
from fedmm.data import SourceTarget
from fedmm.models import Backbone
from fedmm.models.backbones import BLOCKS, MobileNetV2, ThreeColours
from fedmm.models.pretrained import torchvisions_own
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
        ("own_net:five", "returned an object of type int; it must be an nn.Module"),
        ("own_net:boom", "cannot be built with these options: it went wrong"),
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
    assert "needs pictures with 3 channels" in refusal((5,), backbone="own_net:lazy", normalise="imagenet")
    assert "frozen names 'layer', which is not a part of" in refusal(
        backbone="own_net:make", frozen=("layer",), batch_norm="frozen"
    )
    assert "pretrained is for timm and torchvision" in refusal(backbone="own_net:make", pretrained=True)


def test_a_backbone_that_draws_random_numbers_of_its_own_is_refused(own: Path) -> None:
    with pytest.raises(FedmmError, match="draws from torch's global random generator"):
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
        assert "cannot be built" in refusal(backbone="timm:test_resnet", options={option: "os.system"})


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
    assert "cannot be built with these options" in refusal(backbone="timm:test_resnet", options={"wings": 2})


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": "w.safetensors", "initialisation": "truncated_normal"},
            "initialisation must be 'torch' with weights from a file, which 'truncated_normal' would overwrite",
        ),
        ({"bottleneck": 0}, "bottleneck must be at least 1, not 0"),
        ({"frozen_blocks": 20}, "frozen_blocks must be at most 19, not 20"),
        ({"frozen_blocks": -1}, "frozen_blocks must be at least 0, not -1"),
        (
            {"frozen_blocks": 1, "batch_norm": "averaged"},
            "batch_norm must be 'frozen' with frozen_blocks, whose statistics 'averaged' would change",
        ),
        ({"normalise": "mean"}, "normalise must be one of imagenet, half, none, not 'mean'"),
        ({"bottleneck_dropout": 1.0}, "bottleneck_dropout must be between 0 and 0.99, not 1.0"),
        ({"bottleneck": 10**12}, "bottleneck must be at most 1000000, not 1000000000000"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=f"^{re.escape(message)}$"):
        MobileNetV2(**options)


@pytest.mark.parametrize("shape", [(2,), (1, 32, 32), (4, 32, 32)])
def test_it_takes_pictures_of_three_channels_alone(shape: tuple[int, ...]) -> None:
    with pytest.raises(FedmmError, match=r"^model 'mobilenet_v2' takes pictures"):
        MobileNetV2().build(shape, 3, seed=0)


def state() -> dict[str, torch.Tensor]:
    """The weights of a whole network as torchvision names them."""
    models = pytest.importorskip("torchvision.models")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return {name: tensor.clone() for name, tensor in models.mobilenet_v2(weights=None).state_dict().items()}


def built(**options: Any) -> nn.Sequential:
    features = MobileNetV2(**options).build((3, 32, 32), 3, seed=0).features
    assert isinstance(features, nn.Sequential)
    return features


def assert_loaded(features: nn.Sequential, weights: dict[str, torch.Tensor]) -> None:
    backbone = features.backbone.state_dict()
    assert all(torch.equal(backbone[name], weights[f"features.{name}"]) for name in backbone)


def test_the_parts_have_names_that_groups_can_be_written_with() -> None:
    pytest.importorskip("torchvision")
    parts = ["normalise", "backbone", "pool", "flatten", "bottleneck", "relu"]
    assert list(dict(built().named_children())) == parts
    assert list(dict(built(normalise="none", bottleneck_dropout=0.5).named_children())) == [*parts[1:], "dropout"]
    assert len(built().backbone) == BLOCKS  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["safetensors", "pth", "pt"])
def test_weights_from_a_file_are_the_start_of_the_backbone(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w.{suffix}"
    weights = state()
    (save_file if suffix == "safetensors" else torch.save)(weights, path)  # type: ignore[operator]
    assert_loaded(built(weights=str(path)), weights)


def test_a_relative_path_is_looked_for_here_and_then_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = state()
    there, here = tmp_path / "data" / "nets", tmp_path / "here"
    there.mkdir(parents=True)
    here.mkdir()
    save_file(weights, there / "w.safetensors")
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(here)
    assert_loaded(built(weights="nets/w.safetensors"), weights)
    (here / "nets").mkdir()
    other = {name: tensor + 1 for name, tensor in weights.items()}
    save_file(other, here / "nets" / "w.safetensors")
    assert_loaded(built(weights="nets/w.safetensors"), other)


@pytest.mark.parametrize(("normalise", "fits"), [("half", True), ("imagenet", False), ("none", False)])
def test_a_file_that_says_how_its_input_is_normalised_is_obeyed(tmp_path: Path, normalise: str, fits: bool) -> None:
    path = tmp_path / "w.safetensors"
    save_file(state(), path, metadata={"input": "RGB in [0,1], Normalize(mean=0.5,std=0.5)"})
    if fits:
        built(weights=str(path), normalise=normalise)
    else:
        with pytest.raises(FedmmError, match=f"set normalise to 'half', not '{normalise}'$"):
            built(weights=str(path), normalise=normalise)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.pth", "text.pth", "text.safetensors", "other.pth", "list.pth"])
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torchvision")
    (tmp_path / "text.pth").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(FedmmError, match=f"{name} cannot be read as MobileNetV2 weights with torchvision's names"):
        built(weights=str(tmp_path / name))


@pytest.mark.parametrize(
    ("normalise", "expected"),
    [
        ("half", [-1.0, 0.0, 1.0]),
        ("imagenet", [-0.485 / 0.229, (0.5 - 0.456) / 0.224, (1 - 0.406) / 0.225]),
    ],
)
def test_pictures_are_normalised_channel_by_channel(normalise: str, expected: list[float]) -> None:
    pytest.importorskip("torchvision")
    x = torch.tensor([0.0, 0.5, 1.0]).view(1, 3, 1, 1).expand(2, 3, 2, 2)
    shown = built(normalise=normalise).normalise(x)  # type: ignore[operator]
    torch.testing.assert_close(shown, torch.tensor(expected).view(1, 3, 1, 1).expand(2, 3, 2, 2))


def test_torchvisions_own_weights_are_downloaded_and_their_checksum_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = pytest.importorskip("torchvision.models._api")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    plain = tmp_path / "plain.pth"
    torch.save({"w": torch.ones(2)}, plain)
    digits = hashlib.sha256(plain.read_bytes()).hexdigest()[:8]
    good, bad = tmp_path / f"net-{digits}.pth", tmp_path / "net-00000000.pth"
    for path in (good, bad):
        path.write_bytes(plain.read_bytes())

    class Published(api.WeightsEnum):  # type: ignore[misc, name-defined]
        GOOD = api.Weights(url=good.as_uri(), transforms=None, meta={})
        BAD = api.Weights(url=bad.as_uri(), transforms=None, meta={})

    assert torchvisions_own(Published.GOOD)["w"].tolist() == [1.0, 1.0]
    with pytest.raises(FedmmError, match=r"^torchvision's weights cannot be fetched from file:.*name a file"):
        torchvisions_own(Published.BAD)


# Frozen blocks --------------------------------------------------------------------------------------------------------


def frozen_run(blocks: int, seed: int = 0) -> Run:
    pytest.importorskip("torchvision")
    model = MobileNetV2(frozen_blocks=blocks, bottleneck=8, adversary_hidden=(4,), bottleneck_dropout=0.2)
    return Run(
        FedMM(0.1, 0.2, local_steps=2),
        partition=SourceTarget(1, 1),
        pair=vectors(6, 6, shape=(3, 32, 32)),
        network=lambda seed: model.build((3, 32, 32), CLASSES, seed),
        seed=seed,
    )


def test_frozen_blocks_are_no_part_of_the_point_and_stay_in_the_model(tmp_path: Path) -> None:
    run = frozen_run(18)
    adaptation = run.adaptation(dtype=torch.float32)
    names = {block.name for block in adaptation.function.layout.blocks}
    assert not any(name.startswith("features.backbone.17.") for name in names)
    assert "features.backbone.18.0.weight" in names
    before = adaptation.function.state(adaptation.problem.start, adaptation.problem.statistics)
    adapted, _ = adaptation.run()
    adapted.save(tmp_path / "model.safetensors")
    after = load_file(tmp_path / "model.safetensors")
    assert torch.equal(after["features.backbone.3.conv.0.0.weight"], before["features.backbone.3.conv.0.0.weight"])
    assert not torch.equal(after["features.backbone.18.0.weight"], before["features.backbone.18.0.weight"])
    loaded = load_model(tmp_path / "model.safetensors", run.network(5))
    x = run.pair.target.x.float()
    assert torch.equal(loaded.predict_proba(x), adapted.predict_proba(x))


def test_both_engines_agree_on_a_network_with_frozen_blocks() -> None:
    runs = [frozen_run(14, seed) for seed in (0, 1)]
    stack = stacked(runs)
    measures = advanced(stack, 1)
    for replica, run in enumerate(runs):
        assert_agrees(stack, replica, measures, referred(run, 1), 1e-8)


@pytest.mark.parametrize("batched", [False, True], ids=["in process", "batched"])
def test_nothing_of_frozen_blocks_is_kept_for_gradients(batched: bool) -> None:
    def kept(blocks: int) -> int:
        run, numbers = frozen_run(blocks), 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal numbers
            numbers += tensor.numel()
            return tensor

        if batched:
            step = stacked([run]).try_step
        else:
            client = run.adaptation().problem.clients[0]
            problem = run.adaptation().problem
            local = client.open_round(0, 1, 1, problem.statistics)
            step = lambda: local.field(problem.start, 0)  # noqa: E731 - the other step's twin
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            step()
        return numbers

    # All 19 frozen: the bottleneck and the heads remain, whose inputs are 1,280 and 8 numbers a row.
    everything, last, heads = kept(0), kept(BLOCKS - 1), kept(BLOCKS)
    assert heads < 2 * 8 * 2_000 + 2 * 3 * 12_000 < everything / 20
    assert last < everything / 3


@pytest.mark.skipif(not os.environ.get("FEDMM_DATA"), reason="FEDMM_DATA names no folder with the pre-trained weights")
def test_the_pretrained_weights_of_the_data_folder_tell_photographs_apart() -> None:
    pytest.importorskip("torchvision")
    given = "mobilenetv2/mobilenet_v2_imagenet_keras.safetensors"
    if not (data_folder() / given).exists():
        pytest.skip("the data folder holds no mobilenetv2")
    with pytest.raises(FedmmError, match="normalise"):
        built(weights=given)
    features = built(weights=given, normalise="half").eval()
    with torch.no_grad():
        deep = features[:4](torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert deep.shape == (2, 1280)
    assert float(deep.std()) > 0.01
