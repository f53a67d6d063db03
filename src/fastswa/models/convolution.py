"""The layers of a network as a whole: their weights made ready at once, their gradients beside other work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fastswa import beside, kernels
from fastswa.operation import operation


class Weights:
    """What each layer of a network multiplies by; `beside`: convolutions' gradients are made on the second stream."""

    def __init__(self, of: Mapping[nn.Module, Tensor], beside: bool) -> None:
        self.of, self.beside = of, beside

    def convolve(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """`layer`'s convolution of images (N, C, H, W), without its bias.

        Few channels are filled up with zeros where a GPU wants eights.
        """
        weight = self.of[layer]
        if x.is_cuda and x.shape[1] < 8:
            missing = (0, 0, 0, 0, 0, 8 - x.shape[1])
            x, weight = F.pad(x.to(weight.dtype), missing), F.pad(weight, missing)
        elif self.beside and not isinstance(layer.padding, str):
            return _convolve(x.to(weight.dtype), weight, list(layer.stride), list(layer.padding), layer.groups)
        return F.conv2d(x, weight, None, layer.stride, layer.padding, 1, layer.groups)

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """`layer` applied to x (N, I)."""
        return F.linear(x, self._weight(layer), layer.bias)

    def linears(self, layers: Sequence[nn.Linear], x: Tensor) -> tuple[Tensor, ...]:
        """What each of the layers gives for x (N, I), computed as one layer."""
        weight = torch.cat([self._weight(layer) for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        return F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=1)

    def _weight(self, layer: nn.Linear) -> Tensor:
        # Not as a default: a weight-normalised layer computes its weight when it is asked for.
        return self.of[layer] if layer in self.of else layer.weight  # noqa: SIM401


class Convolutional(nn.Module):
    """A network whose layers get their weights ready together at the beginning of a pass.

    They are its convolutions and, where these are weight-normalised, its linear layers, which are so too.

    `beside` lets a captured step make their gradients on the second stream. Whoever sets it sees to it that no memory
    is used again before the step ends: compiled code must neither reuse its buffers nor write over them.
    """

    beside = False

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[nn.Conv2d | nn.Linear] = []

    def gather(self) -> None:
        """Find the layers; the last thing that a network's making does."""
        convolutions = [module for module in self.modules() if isinstance(module, nn.Conv2d)]
        linear = [module for module in self.modules() if isinstance(module, nn.Linear)]
        self.layers = [*convolutions, *linear] if parametrize.is_parametrized(convolutions[0]) else [*convolutions]

    def weights(self) -> Weights:
        """All layers' weights, normalised and cast in one launch where a GPU allows it.

        Only in training and without gradients: nothing can be differentiated twice there.
        """
        layers = self.layers
        normed = parametrize.is_parametrized(layers[0])
        tensors: list[Tensor]
        if normed:
            pairs: list[Any] = [layer.parametrizations.weight for layer in layers]  # type: ignore[union-attr]
            tensors = [_as_kernel(v) for v in (*(p.original1 for p in pairs), *(p.original0 for p in pairs))]
        else:
            tensors = [layer.weight for layer in layers]
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else tensors[0].dtype
        if (
            (torch.is_grad_enabled() and not self.training)
            or not kernels.gatherable(tensors)
            or (not normed and dtype == tensors[0].dtype)
        ):
            return Weights({layer: layer.weight for layer in layers}, beside=False)
        from fastswa.kernels.weights import CastWeights, UnitWeights

        made = (UnitWeights if normed else CastWeights).apply(dtype, *tensors)
        shaped = (w.flatten(1) if isinstance(m, nn.Linear) else w for m, w in zip(layers, made, strict=True))
        return Weights(dict(zip(layers, shaped, strict=True)), self.beside)


def _as_kernel(weight: Tensor) -> Tensor:
    """A linear layer's weight (O, I) as a convolution's (O, I, 1, 1)."""
    return weight[:, :, None, None] if weight.dim() == 2 else weight


@operation("convolve", differentiable=True)
def _convolve(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int) -> Tensor:
    return _last(F.conv2d(x, weight, None, stride, padding, 1, groups))


@_convolve.register_fake
def _(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int) -> Tensor:
    return torch.empty_like(F.conv2d(x, weight, None, stride, padding, 1, groups), memory_format=torch.channels_last)


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int, of_x: bool
) -> Tensor:
    wanted = torch.ops.aten.convolution_backward(
        dy, x, weight, None, stride, padding, [1, 1], False, [0, 0], groups, [of_x, not of_x, False]
    )
    return _last(wanted[0 if of_x else 1])


# Two operations: where only one of the gradients is asked for, compiled code leaves the other out.
@operation("convolve_input_gradient")
def _input_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int
) -> Tensor:
    dy = dy.contiguous(memory_format=torch.channels_last)
    return _gradients(dy, x, weight, stride, padding, groups, of_x=True)


@_input_gradient.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@operation("convolve_weight_gradient")
def _weight_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int
) -> Tensor:
    """Made on the second stream; whoever uses it meets that one first."""
    dy = dy.contiguous(memory_format=torch.channels_last)
    with beside.stream(dy.device):
        gradient = _gradients(dy, x, weight, stride, padding, groups, of_x=False)
    beside.keep(dy, x, weight, gradient)
    return gradient


@_weight_gradient.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int) -> Tensor:
    return torch.empty_like(weight, memory_format=torch.channels_last)


def _last(x: Tensor) -> Tensor:
    """With the strides of channels last, also where some sizes are 1 and others would do."""
    x = x.contiguous(memory_format=torch.channels_last)
    _, c, h, w = x.shape
    return x.as_strided(x.shape, (h * w * c, 1, w * c, c))


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, *ctx.settings = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, dy: Tensor):  # type: ignore[no-untyped-def]
    given = dy, *ctx.saved_tensors, *ctx.settings
    of_x, of_weight = ctx.needs_input_grad[:2]
    dweight = _weight_gradient(*given) if of_weight else None
    return _input_gradient(*given) if of_x else None, dweight, None, None, None


_convolve.register_autograd(_backward, setup_context=_save)
