"""Which images to label, by what they look like alone: one from the middle of each of as many groups."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WHY = (
    "The images fall into as many groups that look alike as you would have labels. Each of these stands in the middle "
    "of a group that has no label yet, or few, the largest groups first."
)
# More groups than this say little more, and take long to find.
MOST_GROUPS = 500
_ROUNDS = 30


def choose(features: Tensor, labelled: np.ndarray, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of up to `count` images that have no label, the most wanted first, and how many images each stands for.

    `features` (N, F), `labelled` (N,) bool. The images fall into as many groups as there would be labels then. The
    groups with the fewest labels come first, of these the largest; each gives the image nearest to its middle.
    """
    unit = torch.nn.functional.normalize(features.float(), dim=1)
    open_ = torch.from_numpy(~labelled).to(unit.device)
    count = min(count, int(open_.sum()))
    group, middles = grouped(unit, min(count + int(labelled.sum()), MOST_GROUPS), seed)
    sizes = torch.bincount(group, minlength=len(middles)).tolist()
    labels = torch.bincount(group[~open_], minlength=len(middles)).tolist()
    nearness = (unit * middles[group]).sum(dim=1)
    picked: list[int] = []
    while len(picked) < count:
        # More than once only where there are fewer groups than images wanted.
        for k in sorted(range(len(middles)), key=lambda k: (labels[k], -sizes[k], k)):
            own = torch.nonzero(open_ & (group == k)).flatten()
            if len(own) and len(picked) < count:
                best = int(own[nearness[own].argmax()])
                open_[best] = False
                labels[k] += 1
                picked.append(best)
    rows = np.array(picked, dtype=np.int64)
    return rows, np.array([sizes[k] for k in group.cpu().numpy()[rows]], dtype=np.int64)


def grouped(unit: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Spherical k-means of rows of length 1: each one's group (N,), and the groups' middles (count, F)."""
    generator = torch.Generator().manual_seed(seed)
    middles = unit[_spread(unit, count, generator)]
    group = torch.full((len(unit),), -1, device=unit.device)
    for _ in range(_ROUNDS):
        found = _nearest(unit, middles)
        if torch.equal(found, group):
            break
        group = found
        sums = torch.zeros_like(middles).index_add_(0, group, unit)
        empty = torch.bincount(group, minlength=count) == 0
        middles = torch.where(empty[:, None], middles, torch.nn.functional.normalize(sums, dim=1))
    return _nearest(unit, middles), middles


def _nearest(unit: Tensor, middles: Tensor) -> Tensor:
    return torch.cat([(part @ middles.T).argmax(dim=1) for part in unit.split(4096)])


def _spread(unit: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows to begin with, each drawn the likelier the further it is from those before it (k-means++)."""
    rows = [int(torch.randint(len(unit), (1,), generator=generator))]
    distance = torch.full((len(unit),), 2.0, device=unit.device)
    while len(rows) < count:
        distance = torch.minimum(distance, (1.0 - unit @ unit[rows[-1]]).clamp(min=0.0))
        chances = distance.double().cpu()
        if not chances.sum() > 0:  # no two images differ any more
            chances = torch.ones_like(chances)
        rows.append(int(torch.multinomial(chances, 1, generator=generator)))
    return torch.tensor(rows, device=unit.device)
