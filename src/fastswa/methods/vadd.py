"""Virtual adversarial dropout (Park et al. 2017): the dropout mask nearby that disturbs the prediction most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.batch_norm import frozen_statistics
from fastswa.errors import RequestError
from fastswa.methods.losses import classification, probabilities
from fastswa.methods.method import Batch, Method, Network, Terms
from fastswa.methods.vat import fixed
from fastswa.noise import Noise


class _Heard(Noise):
    """A pass's noise that remembers the name of the last dropout layer."""

    def __init__(self, noise: Noise) -> None:
        super().__init__(noise.words, noise._scope)
        self.last: str | None = None

    def dropout(self, name: str, x: Tensor, p: float) -> Tensor:
        if p:
            self.last = name
        return super().dropout(name, x, p)


class _Observed(Noise):
    """A pass's noise that keeps what the dropout layer `layer` gets and gives: its mask, input and output.

    To the layers after it the output is where everything begins: nothing below is differentiated.
    """

    def __init__(self, noise: Noise, layer: str) -> None:
        super().__init__(noise.words, noise._scope)
        self.layer = layer
        self.seen: tuple[Tensor, Tensor, Tensor] | None = None

    def dropout(self, name: str, x: Tensor, p: float) -> Tensor:
        if name != self.layer:
            return super().dropout(name, x, p)
        mask = (self.uniform(name, x.shape) >= p).to(x.dtype)
        x = x.detach()
        dropped = (x * mask * (1.0 / (1.0 - p))).requires_grad_()
        self.seen = mask, x, dropped
        return dropped


class _Masked(Noise):
    """A pass's noise but for the dropout layer `layer`, whose mask is given."""

    def __init__(self, noise: Noise, layer: str, mask: Tensor) -> None:
        super().__init__(noise.words, noise._scope)
        self.layer, self.mask = layer, mask

    def dropout(self, name: str, x: Tensor, p: float) -> Tensor:
        return x * self.mask * (1.0 / (1.0 - p)) if name == self.layer else super().dropout(name, x, p)


def adversarial_mask(mask: Tensor, slope: Tensor, delta: float) -> Tensor:
    """The mask (B, ...) of zeros and ones within `delta` of its units that promises the largest divergence.

    `slope` (B, ...) is the divergence's derivative by each unit of the mask: setting a unit promises as much, clearing
    it the opposite. The units that promise most are flipped, as many as `delta` of them allow and none that promises a
    loss.
    """
    promise = ((1.0 - 2.0 * mask) * slope).flatten(1)
    best = promise.topk(int(delta * promise.shape[1]), dim=1)
    flips = torch.zeros_like(promise).scatter(1, best.indices, (best.values > 0).to(promise.dtype))
    return (mask - flips.view_as(mask)).abs()


class VAdD(Method):
    """d(f(x, e'), f(x, e)): e is a random mask of the network's last dropout layer, e' an adversarial one.

    e' is within a part `delta` of its units of a second random mask, at which the divergence from the first pass has
    a slope. The adversarial pass has a view of its own, so that with `delta` 0 this is the Pi model.
    """

    settings = frozenset({"weight", "ramp", "divergence", "tie", "delta"})
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        heard = _Heard(batch.noise.scope("student"))
        output = student(batch.view("student"), heard)
        if heard.last is None:
            raise RequestError("method vadd: the network has no dropout; give model.dropout or another model.")
        clean = probabilities(output.consistency).detach()
        x, noise = batch.view("teacher"), batch.noise.scope("teacher")
        with frozen_statistics(student):
            mask = self.adversary(x, noise, student, clean, heard.last)
            disturbed = student(x, _Masked(noise, heard.last, mask)).consistency
        return {
            "classification": classification(output.logits, batch.labels),
            "consistency": batch.weight * self.divergence(disturbed, clean).mean(),
            **self.tied(output),
        }

    def adversary(self, x: Tensor, noise: Noise, student: Network, clean: Tensor, layer: str) -> Tensor:
        """The mask of the dropout layer `layer`, near its own in a pass of x, that takes it farthest from `clean`."""
        observed = _Observed(noise, layer)
        with fixed(student), torch.enable_grad():
            divergence = self.divergence(student(x, observed).consistency, clean).sum()
            assert observed.seen is not None
            mask, before, after = observed.seen
            (gradient,) = torch.autograd.grad(divergence, [after])
        # The mask multiplies what comes before it: the slope by a unit of it is the product, up to a factor.
        return adversarial_mask(mask, gradient * before, self.config.delta)
