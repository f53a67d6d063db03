"""A FixMatch step as most people would write it first: plain eager fp32 PyTorch. A yardstick of `fastswa bench`.

Networks of stock modules; weak views of unlabelled images pass without gradient, labelled and strong ones with it, as
in fastswa, so that the two differ in the engine alone; an EMA follows. Images lie in memory as a tensor and each
operation of the strong views runs on those that drew it, or DataLoaders (as naive.py has them) read PIL images and
augment them one by one.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import Dataset

from naive import ENOUGH, loaded_by, most_workers, weak_views

Batches = Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]
THRESHOLD, DECAY, OPERATIONS, CUTOUT = 0.95, 0.999, 2, 0.5


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def resnet9(width: int = 64) -> nn.Module:
    def layer(inputs: int, outputs: int, pool: bool = False) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1), *([nn.MaxPool2d(2)] if pool else [])]

    w = width
    return nn.Sequential(
        *layer(3, w), *layer(w, 2 * w, pool=True), Residual(*layer(2 * w, 2 * w), *layer(2 * w, 2 * w)),
        *layer(2 * w, 4 * w, pool=True), *layer(4 * w, 8 * w, pool=True),
        Residual(*layer(8 * w, 8 * w), *layer(8 * w, 8 * w)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * w, 10),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(inputs), nn.LeakyReLU(0.1))
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )  # fmt: skip
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.first(x)
        return (x if self.skip is None else self.skip(active)) + self.body(active)


def wrn_28_2() -> nn.Module:
    widths = [16, *(32 * 2**stage for stage in range(3) for _ in range(4))]
    blocks = [Block(*pair, 2 if number in (4, 8) else 1) for number, pair in enumerate(pairwise(widths))]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), *blocks, nn.BatchNorm2d(128), nn.LeakyReLU(0.1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


NETWORKS: dict[str, Callable[..., nn.Module]] = {"resnet9": resnet9, "wrn-28-2": wrn_28_2}


class FixMatch:
    """One step on labelled images, two views of unlabelled ones, and the former's labels."""

    def __init__(
        self, name: str, device: torch.device, width: int | None = None, lr: float = 0.05, weight_decay: float = 5e-4
    ) -> None:
        self.student = NETWORKS[name](**({} if width is None else {"width": width})).to(device).train()
        self.average = copy.deepcopy(self.student).requires_grad_(False)
        self.optimizer = torch.optim.SGD(
            self.student.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=weight_decay
        )

    def step(self, labelled: Tensor, weak: Tensor, strong: Tensor, labels: Tensor) -> float:
        self.student.eval()
        with torch.no_grad():
            certainty, guess = F.softmax(self.student(weak), dim=1).max(dim=1)
        self.student.train()
        logits = self.student(torch.cat([labelled, strong]))
        learnt = F.cross_entropy(logits[len(labels) :], guess, reduction="none")
        loss = F.cross_entropy(logits[: len(labels)], labels) + (learnt * (certainty >= THRESHOLD)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), self.student.parameters(), strict=True):
                mine.mul_(DECAY).add_(theirs, alpha=1 - DECAY)
        return loss.item()


def tensors_in_memory(
    pixels: np.ndarray, labels: np.ndarray, batch: int, labelled: int, device: torch.device, translate: int, flip: bool,
    workers: int | None = None,
) -> Batches:  # fmt: skip
    """Endless batches from (N, C, H, W) uint8 arrays kept on the device, augmented a batch at a time."""
    images = torch.from_numpy(pixels).to(device)
    known = torch.from_numpy(labels).to(device)
    mean = images[:ENOUGH].float().mean(dim=(0, 2, 3), keepdim=True)
    std = images[:ENOUGH].float().std(dim=(0, 2, 3), keepdim=True)
    while True:
        index = torch.randint(0, len(images), (batch,), device=device)
        chosen = images[index].float()
        weak = (weak_views(chosen, translate, flip) - mean) / std
        strong = (strong_views(weak_views(chosen[labelled:], translate, flip)) - mean) / std
        side = round(CUTOUT * min(strong.shape[2:]))
        yield weak[:labelled], weak[labelled:], cut(strong, side), known[index[:labelled]]


def strong_views(x: Tensor) -> Tensor:
    """Two operations for each image (N, C, H, W) of values 0 to 255, each run on the images that drew it."""
    x = x.clone()
    for _ in range(OPERATIONS):
        which = torch.randint(0, len(BATCHED) + 1, (len(x),), device=x.device)
        strength = torch.rand(len(x), 1, 1, 1, device=x.device)
        for number, operation in enumerate(BATCHED):
            rows = (which == number).nonzero().flatten()
            if len(rows):
                x[rows] = operation(x[rows], strength[rows])
    return x


def cut(x: Tensor, side: int) -> Tensor:
    """A square about a random pixel of each image set to the mean colour, which is 0."""
    count, _, height, width = x.shape
    rows, columns = (torch.arange(size, device=x.device) for size in (height, width))
    top = torch.randint(0, height, (count, 1), device=x.device) - side // 2
    left = torch.randint(0, width, (count, 1), device=x.device) - side // 2
    down = ((rows >= top) & (rows < top + side))[:, :, None]
    across = ((columns >= left) & (columns < left + side))[:, None, :]
    return x * ~(down & across)[:, None]


def _moved(x: Tensor, entries: list[list[Tensor | float]]) -> Tensor:
    one = torch.ones(len(x), device=x.device)
    matrix = torch.stack([torch.stack([one * entry for entry in row], dim=1) for row in entries], dim=1)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="nearest", align_corners=False)


def _signed(strength: Tensor, reach: float) -> Tensor:
    return (2 * strength.flatten() - 1) * reach


def _rotated(x: Tensor, strength: Tensor) -> Tensor:
    angle = _signed(strength, math.radians(30))
    return _moved(x, [[angle.cos(), -angle.sin(), 0.0], [angle.sin(), angle.cos(), 0.0]])


def _blended(other: Tensor | float, x: Tensor, strength: Tensor) -> Tensor:
    return (other + (0.05 + 0.9 * strength) * (x - other)).floor()


def _grey(x: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], device=x.device).view(1, 3, 1, 1)
    return (x * weights).sum(dim=1, keepdim=True)


def _smooth(x: Tensor) -> Tensor:
    kernel = torch.ones(3, 3, device=x.device)
    kernel[1, 1] = 5
    channels = x.shape[1]
    inner = F.conv2d(x, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    smoothed = x.clone()
    smoothed[:, :, 1:-1, 1:-1] = inner
    return smoothed


def _posterised(x: Tensor, strength: Tensor) -> Tensor:
    step = 2.0 ** (5 * strength).floor()
    return (x / step).floor() * step


def _autocontrasted(x: Tensor, strength: Tensor) -> Tensor:
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, ((x - low) * 255 / (high - low).clamp(min=1)).floor(), x)


def _equalised(x: Tensor, strength: Tensor) -> Tensor:
    count, channels, height, width = x.shape
    planes = x.long().reshape(count * channels, -1)
    first = 256 * torch.arange(len(planes), device=x.device)[:, None]
    histogram = torch.bincount((planes + first).flatten(), minlength=256 * len(planes)).view(-1, 256)
    step = (height * width - histogram.gather(1, planes.amax(dim=1, keepdim=True))) // 255
    table = ((step // 2 + histogram.cumsum(dim=1) - histogram) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, planes), planes).view(x.shape).float()


BATCHED: list[Callable[[Tensor, Tensor], Tensor]] = [
    _rotated,
    lambda x, s: _moved(x, [[1.0, _signed(s, 0.3), 0.0], [0.0, 1.0, 0.0]]),
    lambda x, s: _moved(x, [[1.0, 0.0, 0.0], [_signed(s, 0.3), 1.0, 0.0]]),
    lambda x, s: _moved(x, [[1.0, 0.0, _signed(s, 0.6)], [0.0, 1.0, 0.0]]),
    lambda x, s: _moved(x, [[1.0, 0.0, 0.0], [0.0, 1.0, _signed(s, 0.6)]]),
    lambda x, s: _blended(0.0, x, s),
    lambda x, s: _blended(_grey(x).mean(dim=(2, 3), keepdim=True), x, s),
    lambda x, s: _blended(_grey(x), x, s),
    lambda x, s: _blended(_smooth(x), x, s),
    lambda x, s: torch.where(x < 256 * s, x, 255 - x),
    _posterised,
    _autocontrasted,
    _equalised,
]


def _affine(picture: Image.Image, *numbers: float) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, numbers)


# Given a picture and uniform numbers in -1 .. 1 and 0 .. 1.
PICTURED: list[Callable[[Image.Image, float, float], Image.Image]] = [
    lambda p, m, s: p,
    lambda p, m, s: p.rotate(30 * m),
    lambda p, m, s: _affine(p, 1, 0.3 * m, 0, 0, 1, 0),
    lambda p, m, s: _affine(p, 1, 0, 0, 0.3 * m, 1, 0),
    lambda p, m, s: _affine(p, 1, 0, 0.3 * m * p.width, 0, 1, 0),
    lambda p, m, s: _affine(p, 1, 0, 0, 0, 1, 0.3 * m * p.height),
    lambda p, m, s: ImageEnhance.Brightness(p).enhance(0.05 + 0.9 * s),
    lambda p, m, s: ImageEnhance.Contrast(p).enhance(0.05 + 0.9 * s),
    lambda p, m, s: ImageEnhance.Color(p).enhance(0.05 + 0.9 * s),
    lambda p, m, s: ImageEnhance.Sharpness(p).enhance(0.05 + 0.9 * s),
    lambda p, m, s: ImageOps.solarize(p, int(256 * s)),
    lambda p, m, s: ImageOps.posterize(p, 8 - int(5 * s)),
    lambda p, m, s: ImageOps.autocontrast(p),
    lambda p, m, s: ImageOps.equalize(p),
]


class _Pictures(Dataset[Any]):
    """A weak view of each image, and its label where there are labels, else a strong view."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray | None, translate: int, flip: bool) -> None:
        self.pictures = [Image.fromarray(p.transpose(1, 2, 0)) for p in pixels]
        self.labels, self.translate, self.flip = labels, translate, flip
        self.mean, self.std = float(pixels[:ENOUGH].mean()), float(pixels[:ENOUGH].std())

    def __len__(self) -> int:
        return len(self.pictures)

    def weak(self, picture: Image.Image) -> Image.Image:
        width, height = picture.size
        padded = np.pad(np.asarray(picture), [(self.translate,) * 2] * 2 + [(0, 0)], "reflect")
        x, y = random.randint(0, 2 * self.translate), random.randint(0, 2 * self.translate)
        picture = Image.fromarray(padded).crop((x, y, x + width, y + height))
        return ImageOps.mirror(picture) if self.flip and random.random() < 0.5 else picture

    def strong(self, picture: Image.Image) -> Tensor:
        picture = self.weak(picture)
        for operation in random.choices(PICTURED, k=OPERATIONS):
            picture = operation(picture, random.uniform(-1, 1), random.random())
        view = self.tensor(picture)
        side = round(CUTOUT * min(picture.size))
        top, left = random.randrange(picture.height) - side // 2, random.randrange(picture.width) - side // 2
        view[:, max(top, 0) : top + side, max(left, 0) : left + side] = 0
        return view

    def tensor(self, picture: Image.Image) -> Tensor:
        array = (np.asarray(picture, np.float32) - self.mean) / self.std
        return torch.from_numpy(array.transpose(2, 0, 1).copy())

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor | int]:
        picture = self.pictures[number]
        other = self.strong(picture) if self.labels is None else int(self.labels[number])
        return self.tensor(self.weak(picture)), other


def pil_loader(
    pixels: np.ndarray, labels: np.ndarray, batch: int, labelled: int, device: torch.device, translate: int, flip: bool,
    workers: int | None = None,
) -> Batches:  # fmt: skip
    """Endless batches from DataLoaders of PIL images; labelled images have two workers besides the others'."""
    workers = most_workers() if workers is None else workers
    pictures = _Pictures(pixels, labels, translate, flip)
    unlabelled = copy.copy(pictures)
    unlabelled.labels = None
    few = loaded_by(pictures, labelled, min(workers, 2), device)
    many = loaded_by(unlabelled, batch - labelled, workers, device)
    for (view, known), (weak, strong) in zip(few, many, strict=True):
        yield view, weak, strong, known
