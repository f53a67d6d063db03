"""A Mean Teacher step as most people would write it first: plain eager fp32 PyTorch. The yardstick of `fastswa bench`.

Its networks are written with stock modules (Shake-Shake apart, which has no stock counterpart); its loop keeps
the images in memory as a tensor, or reads them through a DataLoader of PIL images: workers that live on, a worker for
each core, sixteen at most, two batches ahead in each, and pinned memory for a GPU. All images of the data set are read.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset

from fastswa.models import build

MOST_WORKERS = 16
# Images that are enough to normalise by.
ENOUGH = 5000


class TwoHeads(nn.Module):
    def __init__(self, body: nn.Module, features: int, classes: int, normed: bool) -> None:
        super().__init__()
        wrap = weight_norm if normed else (lambda layer: layer)
        self.body = body
        self.first, self.second = wrap(nn.Linear(features, classes)), wrap(nn.Linear(features, classes))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.first(features), self.second(features)


class ShakeShake(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = build("shake-shake-26-2x96d", channels=3, classes=10, heads=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = self.network(x)
        return output.logits, output.consistency


def cnn13() -> nn.Module:
    def layer(inputs: int, outputs: int, kernel: int, padding: int) -> list[nn.Module]:
        convolution = weight_norm(nn.Conv2d(inputs, outputs, kernel, padding=padding))
        return [convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)]

    body = nn.Sequential(
        *layer(3, 128, 3, 1), *layer(128, 128, 3, 1), *layer(128, 128, 3, 1), nn.MaxPool2d(2), nn.Dropout(0.5),
        *layer(128, 256, 3, 1), *layer(256, 256, 3, 1), *layer(256, 256, 3, 1), nn.MaxPool2d(2), nn.Dropout(0.5),
        *layer(256, 512, 3, 0), *layer(512, 256, 1, 0), *layer(256, 128, 1, 0),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return TwoHeads(body, 128, 10, normed=True)


def small() -> nn.Module:
    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)]

    body = nn.Sequential(
        *layer(1, 32), *layer(32, 32), nn.MaxPool2d(2), nn.Dropout(0.5), *layer(32, 64), *layer(64, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return TwoHeads(body, 64, 10, normed=False)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "small": small,
    "cnn13": cnn13,
    "shake-shake-26-2x96d": ShakeShake,
}


class MeanTeacher:
    """One step on two views and the labels of the first images."""

    def __init__(self, name: str, device: torch.device, lr: float = 0.1, weight_decay: float = 1e-4) -> None:
        self.student = NETWORKS[name]().to(device).train()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.optimizer = torch.optim.SGD(
            self.student.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=weight_decay
        )
        self.steps = 0

    def step(self, view: Tensor, other: Tensor, labels: Tensor) -> float:
        logits, second = self.student(view)
        with torch.no_grad():
            target = F.softmax(self.teacher(other)[0], dim=1)
        classification = F.cross_entropy(logits[: len(labels)], labels, reduction="sum") / len(view)
        consistency = 100.0 * (F.softmax(second, dim=1) - target).square().mean()
        loss = classification + consistency + 0.01 * (logits - second).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        decay = min(1 - 1 / (self.steps + 1), 0.97)
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                mine.mul_(decay).add_(theirs, alpha=1 - decay)
        return loss.item()


def weak_views(x: Tensor, translate: int, flip: bool) -> Tensor:
    """Images (N, C, H, W) translated with reflection, each by pixels of its own, and half of them flipped."""
    count, _, height, width = x.shape
    device = x.device
    x = F.pad(x, [translate] * 4, mode="reflect")
    rows = torch.randint(0, 2 * translate + 1, (count, 1), device=device) + torch.arange(height, device=device)
    columns = torch.randint(0, 2 * translate + 1, (count, 1), device=device) + torch.arange(width, device=device)
    number = torch.arange(count, device=device)[:, None, None]
    x = x[number, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
    return torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.5, x.flip(3), x) if flip else x


def tensors_in_memory(
    pixels: np.ndarray, labels: np.ndarray, batch: int, labelled: int, device: torch.device, translate: int, flip: bool,
    workers: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Endless batches from (N, C, H, W) uint8 arrays kept on the device, augmented a batch at a time."""
    images = torch.from_numpy(pixels).to(device)
    known = torch.from_numpy(labels).to(device)
    mean = images[:ENOUGH].float().mean(dim=(0, 2, 3), keepdim=True)[0] / 255
    std = images[:ENOUGH].float().std(dim=(0, 2, 3), keepdim=True)[0] / 255

    def view(chosen: Tensor) -> Tensor:
        return weak_views((chosen.float() / 255 - mean) / std, translate, flip)

    while True:
        index = torch.randint(0, len(images), (batch,), device=device)
        yield view(images[index]), view(images[index]), known[index[:labelled]]


class _Pictures(Dataset[tuple[Tensor, Tensor, int]]):
    def __init__(self, pixels: np.ndarray, labels: np.ndarray, translate: int, flip: bool) -> None:
        self.pictures = [Image.fromarray(p.transpose(1, 2, 0).squeeze()) for p in pixels]
        self.labels, self.translate, self.flip = labels, translate, flip
        self.mean, self.std = float(pixels[:ENOUGH].mean()), float(pixels[:ENOUGH].std())

    def __len__(self) -> int:
        return len(self.pictures)

    def view(self, picture: Image.Image) -> Tensor:
        width, height = picture.size
        padded = np.pad(
            np.asarray(picture), [(self.translate,) * 2] * 2 + [(0, 0)] * (picture.mode == "RGB"), "reflect"
        )
        x, y = np.random.randint(0, 2 * self.translate + 1, 2)
        picture = Image.fromarray(padded).crop((x, y, x + width, y + height))
        if self.flip and np.random.rand() < 0.5:
            picture = ImageOps.mirror(picture)
        array = (np.asarray(picture, np.float32) - self.mean) / self.std
        return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        return self.view(self.pictures[number]), self.view(self.pictures[number]), int(self.labels[number])


def most_workers() -> int:
    """A worker for each core, up to a limit."""
    return min(MOST_WORKERS, os.cpu_count() or 1)


def loaded_by(pictures: Dataset[Any], batch: int, workers: int, device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """Endless batches on the device of what a data set holds, read by a DataLoader; no workers: by this process."""
    loader = DataLoader(
        pictures, batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
    while True:
        for parts in loader:
            yield tuple(part.to(device, non_blocking=True) for part in parts)


def pil_loader(
    pixels: np.ndarray, labels: np.ndarray, batch: int, labelled: int, device: torch.device, translate: int, flip: bool,
    workers: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Endless batches from a DataLoader of PIL images, augmented one by one."""
    pictures = _Pictures(pixels, labels, translate, flip)
    for view, other, known in loaded_by(pictures, batch, most_workers() if workers is None else workers, device):
        yield view, other, known[:labelled]
