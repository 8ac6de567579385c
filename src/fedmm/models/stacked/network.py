"""Many networks of one structure as one program: parameters ``[G, size]``, inputs ``[G, rows, ...]``.

Sequential networks of common layers run layer by layer over the whole stack, with batched products, grouped
convolutions or fused kernels. All other networks run one by one inside the same program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedmm.core.errors import require
from fedmm.core.layout import Layout
from fedmm.core.objective import Outputs
from fedmm.core.problem import Statistics
from fedmm.core.seeding import uniform
from fedmm.models.devices import CudaStreams, Precision
from fedmm.models.dropout import SeededDropout
from fedmm.models.network import AdversarialModule, Numbers
from fedmm.models.stacked.bn_folding import FoldedNorms

_ELEMENTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.ReLU6,
    nn.Identity,
)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)

Tensors = Mapping[str, Tensor]


class StackedNetwork:
    """The networks of a stack of replicas.

    modules: one per replica, all of one structure; they provide what is not trained (input mean, random maps).
    layer_by_layer: whether the stack runs layer by layer; why_not: the reason if it does not, otherwise None.
    """

    def __init__(
        self,
        modules: Sequence[AdversarialModule],
        layout: Layout,
        *,
        precision: Precision = "fp32",
        frozen_statistics: bool = False,
        looped: bool = False,
        channels_last: bool = False,
    ) -> None:
        alike = {(module.centre, repr(module)) for module in modules}
        require(len(alike) == 1, "networks of a stack must have the same structure and the same input centring")
        self.layout = layout
        self.module = copy.deepcopy(modules[0]).train()
        if frozen_statistics:
            for layer in self.module.modules():
                layer.train(not isinstance(layer, nn.modules.batchnorm._NormBase) and layer.training)
        self._evaluating = copy.deepcopy(self.module).eval()
        self._folded = FoldedNorms.of(self.module)
        self.precision = precision
        self.why_not = "it was asked for" if looped else stacking_obstacle(self.module)
        self.layer_by_layer = self.why_not is None
        self._channels_last = channels_last
        self._streams = CudaStreams()
        self._dropouts = [name for name, m in self.module.named_modules() if isinstance(m, SeededDropout)]
        own = [_list_untrained(module) for module in modules]
        self._constants = {name: torch.stack([tensors[name] for tensors in own]) for name in own[0]}

    @property
    def has_dropout(self) -> bool:
        """Whether the dropout keys matter."""
        return bool(self._dropouts)

    def constants(self, which: Tensor) -> dict[str, Tensor]:
        """Return the tensors that are not trained (input mean, random maps) of replicas ``which``, int64 ``[G]``."""
        return {name: tensor[which] for name, tensor in self._constants.items()}

    def outputs(
        self, z: Tensor, x: Tensor, constants: Tensors, dropout: Tensor | None, statistics: Statistics
    ) -> Outputs:
        """Return the training outputs at z ``[G, size]`` for batches x ``[G, rows, ...]``; update statistics in place.

        constants: as returned by :meth:`constants`. dropout: int64 ``[G]``, the keys of this step's masks.
        """
        return self._outputs(self.module, z, x, constants, dropout, statistics)

    @torch.no_grad()
    def evaluate(self, z: Tensor, x: Tensor, constants: Tensors, statistics: Statistics) -> Outputs:
        """Return the outputs in evaluation mode; the arguments are those of :meth:`outputs`."""
        return self._outputs(self._evaluating, z, x, constants, None, statistics)

    def _outputs(
        self,
        module: AdversarialModule,
        z: Tensor,
        x: Tensor,
        constants: Tensors,
        dropout: Tensor | None,
        statistics: Statistics,
    ) -> Outputs:
        run = self._by_layer if self.layer_by_layer else self._one_by_one
        return run(module, z, x, dropout, statistics, constants)

    def _by_layer(
        self,
        module: AdversarialModule,
        z: Tensor,
        x: Tensor,
        dropout: Tensor | None,
        statistics: Statistics,
        constants: Tensors,
    ) -> Outputs:
        tensors = {**constants, **{block.name: tensor for block, tensor in self.layout.tensors(z)}, **statistics}
        run = _Run(tensors, dropout, module.training, self._fused(x))
        h = run.layers(_prepare_input(module, x, constants["input_mean"], z.dtype), module.features, "features")
        features = h.flatten(2)
        logits = run.layers(features, module.task_head, "task_head")
        if module.adversary is None:
            return Outputs(features, logits, logits)
        seen = module.adversary_input(features, logits, constants)
        adversary = run.layers(seen, module.adversary, "adversary")
        if module.adversary_shape is not None and module.adversary_shape.held:
            adversary = torch.cat([adversary, run.layers(seen.detach(), module.adversary, "adversary")], dim=-1)
        if module.levels is not None:
            adversary = torch.cat([adversary, run.layers(seen, module.levels, "levels")], dim=-1)
        return Outputs(features, logits, adversary)

    def _fused(self, x: Tensor) -> str | None:
        """Return the precision of the fused convolutions; None if they cannot be used."""
        if x.device.type != "cuda" or self.layout.dtype != torch.float32 or self.precision == "fp32":
            return None
        return self.precision

    def _one_by_one(
        self,
        module: AdversarialModule,
        z: Tensor,
        x: Tensor,
        dropout: Tensor | None,
        statistics: Statistics,
        constants: Tensors,
    ) -> Outputs:
        parts = []
        folds, folded = (self._folded or (None, module)) if module is self.module else (None, module)
        for g, point in enumerate(z.unbind()):
            with self._streams.use(g, z.device):
                tensors = {name: tensor[g] for name, tensor in constants.items()}
                tensors.update({block.name: tensor for block, tensor in self.layout.tensors(point)})
                tensors.update({name: tensor[g] for name, tensor in statistics.items()})
                if dropout is not None:
                    tensors.update({f"{name}.key": dropout[g] for name in self._dropouts})
                rows = x[g] if x.dtype == torch.uint8 else x[g].to(z.dtype)
                if self._channels_last and rows.dim() == 4:
                    rows = rows.contiguous(memory_format=torch.channels_last)
                parts.append(functional_call(folded, folds.fold(tensors) if folds else tensors, (rows,)))
        self._streams.join(z.device)
        return Outputs(*(torch.stack(column) for column in zip(*parts, strict=True)))


def _list_untrained(module: AdversarialModule) -> dict[str, Tensor]:
    """Return parameters that need no gradient, and buffers that are neither running statistics nor dropout keys."""
    handed = {
        f"{path}.{name}"
        for path, layer in module.named_modules()
        if isinstance(layer, SeededDropout | nn.modules.batchnorm._NormBase)
        for name, _ in layer.named_buffers()
    }
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    return frozen | {name: buffer for name, buffer in module.named_buffers() if name not in handed}


def stacking_obstacle(module: AdversarialModule) -> str | None:
    """Return what prevents a network from running layer by layer over a stack; None if nothing does."""
    named = (module.features, module.task_head, module.adversary, module.levels)
    parts = [part for part in named if part is not None]
    layers = [layer for part in parts for _, layer in _named_layers(part, "")]
    trained = [layer for layer in layers if next(layer.parameters(), None) is not None]
    if len(set(map(id, trained))) < len(trained):
        return "a layer that is used in two places"
    every = [layer for part in parts for layer in part.modules()]
    if any(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks for layer in every):
        return "a layer with hooks"
    return next((obstacle for layer in layers if (obstacle := _layer_obstacle(layer))), None)


def _layer_obstacle(layer: nn.Module) -> str | None:
    if type(layer) not in (nn.Conv2d, SeededDropout, nn.Flatten, nn.Linear, Numbers, *_NORMS, *_ELEMENTWISE, *_POOLS):
        return f"a layer of type {type(layer).__name__}"
    if isinstance(layer, nn.Conv2d):
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return None if plain else "a convolution with groups or unusual padding"
    if isinstance(layer, SeededDropout):
        return "dropout of whole channels" if layer.per_channel else None
    if isinstance(layer, nn.Flatten):
        return None if (layer.start_dim, layer.end_dim) == (1, -1) else "an unusual Flatten"
    if isinstance(layer, _NORMS):
        return None if layer.momentum is not None else "batch normalisation with cumulative statistics"
    return None


def _named_layers(module: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """Return the layers of nested nn.Sequential modules in order, with their names."""
    if type(module) is nn.Sequential:
        children = zip(module._modules, module, strict=True)
        return [pair for key, child in children for pair in _named_layers(child, f"{name}.{key}")]
    return [(name, module)]


def _prepare_input(module: AdversarialModule, x: Tensor, input_mean: Tensor, dtype: torch.dtype) -> Tensor:
    """Scale bytes to [0, 1] and centre the input, as :meth:`AdversarialModule.forward` does for one network."""
    over = (-1,) + (1,) * (x.dim() - 1)
    if module.centre == "train_mean" and x.dtype == torch.uint8:
        return torch.add(-input_mean.to(dtype).view(over), x, alpha=1.0 / 255.0)
    x = x.to(dtype) / 255.0 if x.dtype == torch.uint8 else x.to(dtype)
    if module.centre == "image_mean":
        return x - x.flatten(2).mean(dim=2).view(*x.shape[:2], *(1,) * (x.dim() - 2))
    if module.centre == "batch_mean":
        return x - x.flatten(1).mean(dim=1).view(over)
    if module.centre == "train_mean":
        return x - input_mean.view(over)
    return x


class _Linear(torch.autograd.Function):
    """Batched linear layer: x ``[G, rows, in]``, weight ``[G, out, in]``, bias ``[G, out]``.

    torch's gradient of a transposed weight is a transposed view, which would be copied when it joins the flat
    gradient; here the gradient has the memory layout of the weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].to(x.dtype)
        dx = torch.bmm(gradient, weight.to(x.dtype)) if ctx.needs_input_grad[0] else None
        dw = torch.bmm(gradient.transpose(1, 2), x)
        return dx, dw.to(weight.dtype), gradients[0].sum(dim=1).to(weight.dtype)


class _Run:
    """One pass through the layers; between convolutions, pictures have shape ``[rows, G * channels, H, W]``."""

    def __init__(self, tensors: Tensors, dropout: Tensor | None, training: bool, fused: str | None) -> None:
        self.tensors = tensors
        self.dropout = dropout
        self.training = training
        self.fused = fused
        self.stack = 0
        self._grouped = False

    def layers(self, x: Tensor, module: nn.Module, name: str) -> Tensor:
        """Apply all layers of a part, ``[G, rows, ...]`` in and out."""
        self.stack = len(x)
        self._grouped = grouped = False
        layers = _named_layers(module, name)
        position = 0
        while position < len(layers):
            path, layer = layers[position]
            if self.fused and not grouped and _fusible([each for _, each in layers[position : position + 3]], x):
                x = self._conv_relu_pool(x, path, cast(nn.Conv2d, layer))
                position += 3
                continue
            wants_grouped = isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, *_POOLS)) and (grouped or x.dim() == 5)
            if wants_grouped and not grouped:
                x = x.transpose(0, 1).flatten(1, 2)
            elif grouped and not (wants_grouped or isinstance(layer, _ELEMENTWISE)):
                x = self._ungrouped(x)
            self._grouped = grouped = wants_grouped or (grouped and isinstance(layer, _ELEMENTWISE))
            x = self._layer(x, path, layer)
            position += 1
        return self._ungrouped(x) if grouped else x

    def _ungrouped(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.stack, -1, *x.shape[2:]).transpose(0, 1)

    def _layer(self, x: Tensor, path: str, layer: nn.Module) -> Tensor:
        if isinstance(layer, nn.Linear):
            return self._linear(x, self.tensors[f"{path}.weight"], self.tensors.get(f"{path}.bias"))
        if isinstance(layer, Numbers):
            return x * self.tensors[f"{path}.weight"].unsqueeze(1)
        if isinstance(layer, nn.Conv2d):
            return self._conv(x, path, layer)
        if isinstance(layer, nn.Flatten):
            return x.flatten(2)
        if isinstance(layer, SeededDropout):
            return self._dropout(x, layer)
        if isinstance(layer, _NORMS):
            return self._norm(x, path, layer)
        apply = cast(Callable[[Tensor], Tensor], layer)
        if isinstance(layer, _POOLS) and not self._grouped:
            pooled = apply(x.flatten(0, 1))
            return pooled.view(*x.shape[:2], *pooled.shape[1:])
        return apply(x)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x if x.dim() == 3 else x.flatten(1, -2)
        if bias is None:
            out = torch.bmm(rows, weight.transpose(1, 2))
        else:
            out = cast(Tensor, _Linear.apply(rows, weight, bias))  # type: ignore[no-untyped-call]
        return out if x.dim() == 3 else out.view(*x.shape[:-1], -1)

    def _conv(self, x: Tensor, path: str, layer: nn.Conv2d) -> Tensor:
        weight, bias = self.tensors[f"{path}.weight"], self.tensors.get(f"{path}.bias")
        return functional.conv2d(
            x,
            weight.flatten(0, 1),
            None if bias is None else bias.flatten(),
            layer.stride,
            cast(tuple[int, int], layer.padding),
            layer.dilation,
            groups=self.stack,
        )

    def _conv_relu_pool(self, x: Tensor, path: str, layer: nn.Conv2d) -> Tensor:
        from fedmm.models.stacked.fused_conv import conv_relu_pool  # noqa: PLC0415 - Triton needs a GPU

        assert self.fused is not None
        weight = self.tensors[f"{path}.weight"].permute(0, 3, 4, 2, 1).flatten(1, 3)
        return conv_relu_pool(x, weight, self.tensors[f"{path}.bias"], layer.kernel_size[0], self.fused)

    def _dropout(self, x: Tensor, layer: SeededDropout) -> Tensor:
        if not self.training or layer.p == 0.0:
            return x
        assert self.dropout is not None
        position = layer.positions(x.shape[1:], x.device)
        keep = uniform(self.dropout.view((-1,) + (1,) * position.dim()), position) >= layer.p
        return torch.where(keep, x * layer.scale, 0.0)

    def _norm(self, x: Tensor, path: str, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Tensor:
        rows_first = isinstance(layer, nn.BatchNorm2d)
        h = x if rows_first else x.transpose(0, 1).flatten(1, 2)
        names = ("running_mean", "running_var", "weight", "bias")
        mean, var, weight, bias = (self.tensors.get(f"{path}.{name}") for name in names)
        training = layer.training or mean is None
        if layer.training and mean is not None:
            self.tensors[f"{path}.num_batches_tracked"].add_(1)
        h = functional.batch_norm(
            h,
            None if mean is None else mean.view(-1),
            None if var is None else var.view(-1),
            None if weight is None else weight.flatten(),
            None if bias is None else bias.flatten(),
            training,
            0.0 if layer.momentum is None else layer.momentum,
            layer.eps,
        )
        return h if rows_first else h.view(len(h), self.stack, -1, *h.shape[2:]).transpose(0, 1)


def _fusible(layers: Sequence[nn.Module], x: Tensor) -> bool:
    """Return whether the next layers are a convolution, ReLU and 2x2 pooling that the fused kernels support."""
    if len(layers) < 3 or x.dim() != 5 or x.shape[-1] % 2 or x.shape[-2] % 2:
        return False
    conv, relu, pool = layers
    return (
        isinstance(conv, nn.Conv2d)
        and isinstance(relu, nn.ReLU)
        and isinstance(pool, nn.MaxPool2d)
        and conv.bias is not None
        and conv.kernel_size[0] == conv.kernel_size[1]
        and conv.kernel_size[0] % 2 == 1
        and conv.padding == (conv.kernel_size[0] // 2,) * 2
        and conv.stride == conv.dilation == (1, 1)
        and conv.out_channels <= 128
        and pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
    )
