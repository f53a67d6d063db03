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
    `own_dropout` the disturbed one has its own mask, and consistency is asked for across masks too, as Pi does.
    """

    settings = frozenset({"weight", "ramp", "tie", "epsilon", "xi", "power_iterations", "own_dropout"})
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        x, noise = batch.view("student"), batch.noise.scope("student")
        output = student(x, noise)
        clean = probabilities(output.consistency).detach()
        disturbance = self.config.epsilon * self._direction(batch, student, x, clean)
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
        """The adversarial direction: in full precision where the steps are so small that 16 bits would lose them."""
        noise = batch.noise.scope("student")
        start = batch.noise.normal("vat/start", x.shape, x.dtype)
        small = self.config.xi < COARSE * math.sqrt(x[0].numel())
        arithmetic = torch.autocast(x.device.type, enabled=False) if small else nullcontext()
        with arithmetic, frozen_statistics(student), fixed(student), torch.enable_grad():
            with torch.no_grad():
                target = probabilities(student(x, noise).consistency) if small else clean
            return adversarial_direction(
                lambda r: kl(student(x + r, noise).consistency, target),
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
