"""External networks and weights: from timm, torchvision, an importable factory, or a file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedmm.core.errors import FedmmError, first_line, require
from fedmm.core.files import data_folder
from fedmm.core.imports import import_allowed


def load_weights(module: nn.Module, given: str, normalise: str) -> None:
    """Load a file into torchvision's MobileNetV2: safetensors, or a state dict saved by torch.

    given: the path; a relative one is looked up in the current folder, then in the data folder.
    normalise: how the input is normalised; refused unless ``half`` if a safetensors file says that it needs mean 0.5.
    """
    path = _find(given)
    try:
        weights, about = _read(path)
        module.load_state_dict(weights, strict=True)
    except Exception as problem:
        raise FedmmError(
            f"{path} cannot be read as MobileNetV2 weights with torchvision's names: {_reason(problem)}"
        ) from problem
    needs_half = "mean=0.5" in about.get("input", "").replace(" ", "")
    require(
        not needs_half or normalise == "half",
        f"{path} needs pictures normalised by mean=0.5, std=0.5: set normalise to 'half', not {normalise!r}",
    )


_CLASSIFIERS = ("classifier", "fc.", "head.", "head_dist.", "heads.", "last_linear.")


def load_backbone(module: nn.Module, given: str, backbone: str) -> None:
    """Load a file with the module's own parameter names into it; ignore the weights of a removed classifier.

    given: as in :func:`load_weights`.
    """
    path = _find(given)
    try:
        weights: Mapping[str, Any] = _read(path)[0]
        for inside in ("state_dict", "model"):
            weights = weights[inside] if isinstance(weights.get(inside), Mapping) else weights
        wanted = module.state_dict()
        used = {name: tensor for name, tensor in weights.items() if name in wanted or not name.startswith(_CLASSIFIERS)}
        module.load_state_dict(used, strict=True)
    except Exception as problem:
        lines = (str(problem).strip() or type(problem).__name__).splitlines()
        reason = " ".join(line.strip() for line in lines[:2])[:300]
        raise FedmmError(f"{path} cannot be read as weights of {backbone!r}: {reason}") from problem


def _find(given: str) -> Path:
    here = Path(given).expanduser()
    kept = data_folder() / here
    return kept if not here.exists() and kept.exists() else here


def _read(path: Path) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    if path.suffix in (".pth", ".pt"):
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return weights, {}
    from safetensors import safe_open  # noqa: PLC0415 - only where weights are read

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def torchvisions_own(weights: Any) -> dict[str, Tensor]:
    """Return the state dict of one of torchvision's ``Weights``, downloading it if it is not cached."""
    try:
        state: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True)
    except Exception as problem:
        raise FedmmError(
            f"torchvision's weights cannot be fetched from {weights.url} ({_reason(problem)}); name a file with "
            "model.weights instead"
        ) from problem
    return state


TIMM, TORCHVISION = "timm", "torchvision"
_WORDS = ("act_layer", "global_pool", "norm_layer", "pad_type", "pos_embed", "stem_type", "weight_init")
"""Options of a library's networks that may be text; in others, text could name a file or an address."""


class Imported(NamedTuple):
    """A module without its classifier.

    normalise: the mean and standard deviation it expects pictures to be normalised by, if it states them.
    colours: its number of input channels, if known.
    """

    module: nn.Module
    normalise: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    colours: int | None = None


def import_backbone(backbone: str, options: Mapping[str, Any], shape: tuple[int, ...], *, pretrained: bool) -> Imported:
    """Build the feature extractor ``LIBRARY:NAME`` or ``package.module:factory`` with these keyword arguments.

    shape: of a row; timm's networks are built for its number of channels. Refuse what cannot be imported or built, and
    any module that the user has not allowed (:func:`fedmm.allow_import`).
    """
    where, _, name = backbone.partition(":")
    require(
        bool(where and name),
        f"backbone must be 'timm:NAME', 'torchvision:NAME' or 'package.module:factory', not {backbone!r}",
    )
    if where in (TIMM, TORCHVISION):
        _require_plain(backbone, name, options)
    if where == TIMM:
        return _timm(name, options, shape, pretrained)
    if where == TORCHVISION:
        return _torchvision(name, options, pretrained)
    require(not pretrained, "pretrained is for timm and torchvision; let the factory load its weights, or use weights")
    factory = import_allowed(backbone, "backbone")
    require(
        callable(factory),
        f"backbone {backbone!r} is {type(factory).__name__}, not a function that returns an nn.Module",
    )
    return Imported(_make_backbone(factory, options, backbone))


def _timm(name: str, options: Mapping[str, Any], shape: tuple[int, ...], pretrained: bool) -> Imported:
    try:
        import timm  # noqa: PLC0415 - an optional dependency
    except ImportError as problem:
        raise FedmmError(f"backbone 'timm:{name}' needs timm: pip install 'fedmm[timm]'") from problem
    if not timm.is_model(name.partition(".")[0]):
        raise _unknown_network("timm", name, timm.list_models())
    pictures = {"in_chans": shape[0]} if len(shape) == 3 and shape[0] != 3 else {}
    arguments = {"num_classes": 0, **pictures, **options}
    try:
        module = timm.create_model(name, pretrained=pretrained, **arguments)
    except Exception as problem:
        if pretrained:
            raise _no_weights(f"timm:{name}", problem) from problem
        raise _explain_failure(f"timm:{name}", problem) from problem
    about: Mapping[str, Any] = getattr(module, "pretrained_cfg", None) or {}
    scale = (tuple(about["mean"]), tuple(about["std"])) if about.get("mean") and about.get("std") else None
    return Imported(module, scale, shape[0] if len(shape) == 3 else None)


def _torchvision(name: str, options: Mapping[str, Any], pretrained: bool) -> Imported:
    try:
        from torchvision import models  # noqa: PLC0415 - an optional dependency
    except ImportError as problem:
        raise FedmmError(f"backbone 'torchvision:{name}' needs torchvision: pip install 'fedmm[vision]'") from problem
    known = models.list_models(module=models)
    if name not in known:
        raise _unknown_network("torchvision", name, known)

    def factory(**arguments: Any) -> nn.Module:
        module: nn.Module = models.get_model(name, weights=None, **arguments)
        return module

    module = _make_backbone(factory, options, f"torchvision:{name}")
    if pretrained:
        try:
            module.load_state_dict(torchvisions_own(models.get_model_weights(name).DEFAULT))
        except FedmmError:
            raise
        except Exception as problem:
            raise _no_weights(f"torchvision:{name}", problem) from problem
    heads = [path for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    require(bool(heads), f"backbone 'torchvision:{name}' has no linear classifier to remove; use another")
    parent, _, child = heads[-1].rpartition(".")
    setattr(module.get_submodule(parent), child, nn.Identity())
    return Imported(module, colours=3)


def _require_plain(backbone: str, name: str, options: Mapping[str, Any]) -> None:
    """Accept only a library's networks by name with plain options: others may read files or use the internet."""
    require(
        not set(name) & set(":/\\@"),
        f"backbone {backbone!r} must name one of the library's own networks, not a file or an address",
    )
    for option, value in options.items():
        require(
            not isinstance(value, str) or option in _WORDS,
            f"options.{option} of {backbone!r} must be a number, true or false, not {value!r}: text is for "
            f"{', '.join(_WORDS)} only; name weights with model.weights",
        )


def _make_backbone(factory: Any, options: Mapping[str, Any], backbone: str) -> nn.Module:
    try:
        module = factory(**options)
    except Exception as problem:
        raise _explain_failure(backbone, problem) from problem
    if not isinstance(module, nn.Module):
        raise FedmmError(
            f"backbone {backbone!r} returned an object of type {type(module).__name__}; it must be an nn.Module"
        )
    return module


def _unknown_network(library: str, name: str, known: list[str]) -> FedmmError:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {', '.join(map(repr, near))}?" if near else f"; none of its {len(known)} has a similar name"
    return FedmmError(f"{library} has no network {name!r}{hint}")


def _explain_failure(backbone: str, problem: Exception) -> FedmmError:
    return FedmmError(f"backbone {backbone!r} cannot be built with these options: {_reason(problem)}")


def _no_weights(backbone: str, problem: Exception) -> FedmmError:
    return FedmmError(
        f"the weights of {backbone!r} cannot be loaded ({_reason(problem)}); pretrained downloads them, so name "
        "a file with model.weights instead"
    )


def _reason(problem: Exception) -> str:
    return first_line(problem)[:200]
