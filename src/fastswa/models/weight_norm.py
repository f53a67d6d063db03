"""Weight norm (Salimans & Kingma 2016), exact in the precision of its tensors.

torch's own has kernels for GPUs that divide in 32 bits whatever the tensors' type.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization


class _UnitRows(nn.Module):
    """A weight (O, ...) as gain (O, 1, ...) times rows of length 1 along v's."""

    def forward(self, gain: Tensor, v: Tensor) -> Tensor:
        return v * (gain / _lengths(v))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The gain and the v that give `weight`."""
        return _lengths(weight), weight


def _lengths(weight: Tensor) -> Tensor:
    return torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.dim())), keepdim=True)


def weight_norm(layer: nn.Module) -> None:
    """Replace the layer's weight by a gain and a direction to train, named as torch's weight norm names them."""
    register_parametrization(layer, "weight", _UnitRows())
