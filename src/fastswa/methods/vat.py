"""Virtual adversarial training (Miyato et al. 2017), alone and with entropy minimisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.batch_norm import frozen_statistics
from fastswa.config import MethodConfig
from fastswa.errors import RequestError
from fastswa.methods.losses import classification, entropy, kl, probabilities
from fastswa.methods.method import Batch, Method, Network, Output, Terms

# Steps of the power iteration that move a value by this on average (3 in all, for 32x32 colour images) are found in 16
# bits as well as in 64 (benchmarks/vat_direction.py).
COARSE = 0.05


def unit(x: Tensor) -> Tensor:
    """Each row of x (B, ...) scaled to length 1."""
    length = x.flatten(1).norm(dim=1).clamp(min=torch.finfo(x.dtype).tiny)
    return x / length.view(-1, *[1] * (x.dim() - 1))


def coloured(white: Tensor, correlation: float) -> Tensor:
    """White directions (B, ...) turned into those of images whose neighbours correlate so along every axis.

    Such images are a first-order Markov field, with a covariance C of correlation^|i - j| along rows, columns and
    colours; each axis is multiplied by a root of its own. The unit ball becomes the ellipsoid of C, which is what the
    ball around a whitened image is before whitening.
    """
    if correlation == 0:
        return white
    with torch.autocast(white.device.type, enabled=False):
        for axis in range(1, white.dim()):
            places = torch.arange(white.shape[axis], device=white.device, dtype=white.dtype)
            behind = places.unsqueeze(1) - places
            new = math.sqrt(1 - correlation**2)  # what each has of its own; all of the first is
            root = torch.exp(math.log(correlation) * behind).tril() * (new + (1 - new) * (places == 0))
            white = (white.movedim(axis, -1) @ root.T).movedim(-1, axis)
    return white


def adversarial_direction(divergence: Callable[[Tensor], Tensor], start: Tensor, xi: float, iterations: int) -> Tensor:
    """The unit direction (B, ...) in which `divergence` (r -> (B,)) grows fastest, by power iteration.

    Near r = 0 the divergence is r^T H r / 2; its gradient at xi d is xi H d, one multiplication by H.
    """
    direction = unit(start)
    for _ in range(iterations):
        probe = (xi * direction).requires_grad_()
        (gradient,) = torch.autograd.grad(divergence(probe).sum(), probe)
        direction = unit(gradient)
    return direction.detach()


@contextmanager
def fixed(network: Network) -> Iterator[None]:
    """Passes inside send no gradient to the weights; compiled code leaves out by itself what nobody asks for."""
    learning = [] if torch.compiler.is_compiling() else [p for p in network.parameters() if p.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


class VAT(Method):
    """KL[f(x) || f(x + epsilon r)] with r the direction to which the prediction is most sensitive.

    The clean and the disturbed passes share one view and one dropout mask, so that only r tells them apart; with
    `own_dropout` the disturbed one has its own mask, and consistency is asked for across masks too, as Pi does. With a
    `correlation` the lengths of r and of the steps towards it are those of whitened images, on which VAT was published.
    """

    settings = frozenset({"weight", "ramp", "tie", "epsilon", "xi", "power_iterations", "own_dropout", "correlation"})
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        x, noise = batch.view("student"), batch.noise.scope("student")
        output = student(x, noise)
        clean = probabilities(output.consistency).detach()
        disturbance = self.config.epsilon * coloured(self._direction(batch, student, x, clean), self.config.correlation)
        with frozen_statistics(student):
            mask = batch.noise.scope("disturbed") if self.config.own_dropout else noise
            disturbed = student(x + disturbance, mask).consistency
        return {
            "classification": classification(output.logits, batch.labels),
            "consistency": batch.weight * kl(disturbed, clean).mean(),
            **self.extra(batch, output),
            **self.tied(output),
        }

    def extra(self, batch: Batch, output: Output) -> Terms:
        """Further terms from the clean pass."""
        return {}

    def _direction(self, batch: Batch, student: Network, x: Tensor, clean: Tensor) -> Tensor:
        """The adversarial direction, white: in full precision where steps are so small that 16 bits would lose them."""
        noise = batch.noise.scope("student")
        start = batch.noise.normal("vat/start", x.shape, x.dtype)
        small = self.config.xi < COARSE * math.sqrt(x[0].numel())
        arithmetic = torch.autocast(x.device.type, enabled=False) if small else nullcontext()
        with arithmetic, frozen_statistics(student), fixed(student), torch.enable_grad():
            with torch.no_grad():
                target = probabilities(student(x, noise).consistency) if small else clean
            return adversarial_direction(
                lambda r: kl(student(x + coloured(r, self.config.correlation), noise).consistency, target),
                start,
                self.config.xi,
                self.config.power_iterations,
            )


class VATEntMin(VAT):
    """VAT, and the entropy of the predictions on unlabelled images kept low."""

    settings = VAT.settings | {"entropy"}
    terms: ClassVar[Mapping[str, str]] = {**VAT.terms, "entropy": "student"}

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        super().__init__(config, images=images, classes=classes)
        if config.entropy == 0:
            raise RequestError("method.entropy is 0, which leaves plain VAT; use the method vat.")

    def extra(self, batch: Batch, output: Output) -> Terms:
        labelled = len(batch.labels)
        unlabelled = output.logits[labelled:] if labelled < len(output.logits) else output.logits
        return {"entropy": self.config.entropy * entropy(unlabelled).mean()}
