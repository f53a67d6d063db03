"""python benchmarks/vat_direction.py IMAGES.npz: how well VAT's direction is found, by step and by arithmetic.

Trains the 13-layer CNN for some steps on an .npz file's images (x_train (N, 3, 32, 32), y_train), then looks for the
adversarial direction of 32 of them by one power iteration, with steps (xi) of several lengths in 64, 32 and 16 bits.
Prints the mean cosine to the direction of a very small step in 64 bits, and the harm: the divergence (in 64 bits) after
a disturbance of length 8 along it. The start, a random direction, is the yardstick.
"""

from __future__ import annotations

import copy
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fastswa.batch_norm import frozen_statistics
from fastswa.methods.losses import kl, probabilities
from fastswa.methods.vat import adversarial_direction, unit
from fastswa.models.cnn13 import CNN13
from fastswa.noise import Noise

STEPS, BATCH, LOOKED_AT, EPSILON = 70, 48, 32, 8.0


def trained(x: Tensor, y: Tensor) -> CNN13:
    network = CNN13(classes=int(y.max()) + 1).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=2e-4)
    for _ in range(STEPS):
        rows = torch.randint(0, len(x), (BATCH,))
        loss = F.cross_entropy(network(x[rows]).logits, y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def main(images: str) -> None:
    torch.manual_seed(0)
    with np.load(images, allow_pickle=False) as file:
        x, y = torch.from_numpy(file["x_train"]).float(), torch.from_numpy(file["y_train"]).long()
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    network = trained(x, y)
    x = x[:LOOKED_AT]
    start = torch.randn_like(x)
    noise = Noise(torch.tensor([5, 7], dtype=torch.int32)).scope("student")

    def direction(xi: float, dtype: torch.dtype, bf16: bool = False) -> Tensor:
        own, here = copy.deepcopy(network).to(dtype), x.to(dtype)
        with frozen_statistics(own), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            with torch.no_grad():
                target = probabilities(own(here, noise).logits)
            return adversarial_direction(
                lambda r: kl(own(here + r, noise).logits, target), start.to(dtype), xi, 1
            ).double()

    def harm(along: Tensor) -> float:
        own, here = copy.deepcopy(network).double(), x.double()
        with torch.no_grad(), frozen_statistics(own):
            target = probabilities(own(here, noise).logits)
            return float(kl(own(here + EPSILON * along, noise).logits, target).mean())

    finest = direction(1e-2, torch.float64)
    print(f"finest step: harm {harm(finest):.3f}; random direction: harm {harm(unit(start).double()):.3f}")
    for xi in (1e-2, 0.1, 1.0, 3.0, 10.0):
        for name, dtype, bf16 in (
            ("64", torch.float64, False),
            ("32", torch.float32, False),
            ("16", torch.float32, True),
        ):
            found = direction(xi, dtype, bf16)
            cosine = float(F.cosine_similarity(found.flatten(1), finest.flatten(1)).mean())
            print(f"step {xi:g}, {name} bits: cosine {cosine:.3f}, harm {harm(found):.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
