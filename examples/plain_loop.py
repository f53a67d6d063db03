"""python examples/plain_loop.py: SWA and fast-SWA in a plain PyTorch loop, on the embedded digits.

Nothing of fastswa's training is used: the network, the data and the loop are anybody's. What fastswa adds are the lines
with `schedule`, `swa` and `fast_swa`.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fastswa import AveragedWeights, CyclicCosine
from fastswa.data.sources.digits import load_digits


def network() -> nn.Module:
    """A small CNN with batch norm."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def digits(labels: int) -> tuple[TensorDataset, Tensor, Tensor]:
    """The first `labels` training images, and the test images with their labels."""
    source = load_digits()
    assert source.test is not None
    train, test = source.train, source.test
    x, x_test = (torch.from_numpy(part.pixels).float() / 255 for part in (train, test))
    y, y_test = (torch.from_numpy(part.labels) for part in (train, test))
    return TensorDataset(x[:labels], y[:labels]), x_test, y_test


def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Percent of the images that the model gets wrong."""
    model.eval()
    with torch.no_grad():
        return 100.0 * float((model(x).argmax(dim=1) != y).float().mean())


def train(epochs: int = 60, labels: int = 300, seed: int = 0) -> dict[str, float]:
    """Train once; the test error of the last iterate and of both averages, in percent."""
    torch.manual_seed(seed)
    images, x_test, y_test = digits(labels)
    loader = DataLoader(images, batch_size=50, shuffle=True, drop_last=True)
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    # The rate falls along a cosine for two thirds of the epochs, then repeats its last sixth as cycles.
    length, cycle = epochs * 2 / 3, epochs / 6
    schedule = CyclicCosine(optimiser, length=length, period=length + cycle, cycle=cycle)
    # SWA averages where the rate is lowest, fast-SWA ten times a cycle.
    swa = AveragedWeights(model, start=length, every=cycle)
    fast_swa = AveragedWeights(model, start=length - cycle, every=cycle / 10)

    for epoch in range(epochs):
        model.train()
        for batch, (x, y) in enumerate(loader):
            schedule.step(epoch + batch / len(loader))
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
            done = epoch + (batch + 1) / len(loader)
            swa.update(done)
            fast_swa.update(done)

    for average in (swa, fast_swa):
        average.refresh(loader)  # the statistics in it are of other weights
    return {
        "last iterate": error(model, x_test, y_test),
        f"SWA of {swa.count}": error(swa.module, x_test, y_test),
        f"fast-SWA of {fast_swa.count}": error(fast_swa.module, x_test, y_test),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--labels", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    for name, value in train(**vars(parser.parse_args())).items():
        print(f"{name:<16} {value:5.2f}% wrong")
