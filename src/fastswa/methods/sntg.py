"""Smooth neighbours on teacher graphs (Luo et al. 2018): images that the teacher calls alike lie close together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.methods.method import Batch, Output, Terms
from fastswa.methods.temporal_ensembling import TemporalEnsembling


def contrast(first: Tensor, second: Tensor, alike: Tensor, margin: float) -> Tensor:
    """d^2 for pairs that are `alike` (P,), max(0, margin - d)^2 for the others, of features (P, F): (P,).

    d^2 is the squared distance divided by F, so that one margin suits networks of any width.
    """
    wide = [x if x.dtype == torch.float64 else x.float() for x in (first, second)]
    squared = (wide[0] - wide[1]).square().mean(dim=1)
    # The root has no slope at 0, where two images are the same to the network.
    distance = squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()
    return torch.where(alike, squared, (margin - distance).clamp(min=0.0).square())


class SNTG(TemporalEnsembling):
    """Temporal Ensembling, whose targets are the teacher of a graph: alike are two images of one predicted class.

    The features before the heads are compared over pairs of the batch, each image in one of them, drawn anew at each
    step. Labelled images have their label; pairs with an image that has no target yet do not count.
    """

    settings = TemporalEnsembling.settings | {"neighbours", "margin"}
    terms: ClassVar[Mapping[str, str]] = {**TemporalEnsembling.terms, "neighbours": "student"}

    def extra(self, batch: Batch, output: Output, past: Tensor, present: Tensor) -> Terms:
        labelled = len(batch.labels)
        classes = torch.cat([batch.labels, past[labelled:].argmax(dim=1)])
        known = torch.cat([torch.ones_like(present[:labelled]), present[labelled:]])
        order = batch.noise.uniform("neighbours", (len(classes),)).argsort()
        one, other = order[: len(order) // 2], order[len(order) // 2 :][: len(order) // 2]
        pairs = contrast(
            output.features[one], output.features[other], classes[one] == classes[other], self.config.margin
        )
        mean = (known[one] * known[other] * pairs).sum() / max(len(one), 1)
        return {"neighbours": batch.weight * self.config.neighbours * mean}
