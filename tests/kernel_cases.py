"""What tests of kernels share, on a GPU and interpreted."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fastswa.config import MethodConfig
from fastswa.methods.mean_teacher import MeanTeacher


def terms_and_gradient(
    both: Tensor, target: Tensor, share: Tensor | None, labels: Tensor, two: bool
) -> tuple[list[Tensor], Tensor]:
    """The terms, and the gradient of a weighted sum of them."""
    classes = both.shape[1] // 2
    method = MeanTeacher(MethodConfig(name="mean-teacher", tie=0.1), images=1, classes=classes)
    both = both.detach().requires_grad_()
    first, second = both.split(classes, dim=1)
    output = SimpleNamespace(logits=first, consistency=second if two else first)
    weight = torch.tensor(7.0, dtype=target.dtype, device=target.device)
    terms = list(method.agreement(SimpleNamespace(labels=labels, weight=weight), output, target, share).values())  # type: ignore[arg-type]
    by = [torch.tensor(1.5 - 0.5 * k, dtype=term.dtype, device=target.device) for k, term in enumerate(terms)]
    return terms, torch.autograd.grad(terms, both, by)[0]
