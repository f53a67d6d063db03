"""The consistency methods' terms in one launch: interpreted kernels against plain operations in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fastswa import kernels
from fastswa.config import MethodConfig
from fastswa.methods.mean_teacher import MeanTeacher
from interpreted.stand_in import distance


def found(both: Tensor, target: Tensor, share: Tensor | None, labels: Tensor, two: bool) -> tuple[list[Tensor], Tensor]:
    """The terms, and the gradient of a weighted sum of them."""
    classes = both.shape[1] // 2
    method = MeanTeacher(MethodConfig(name="mean-teacher", tie=0.1), images=1, classes=classes)
    both = both.detach().requires_grad_()
    first, second = both.split(classes, dim=1)
    output = SimpleNamespace(logits=first, consistency=second if two else first)
    weight = torch.tensor(7.0, dtype=target.dtype)
    terms = list(method.agreement(SimpleNamespace(labels=labels, weight=weight), output, target, share).values())  # type: ignore[arg-type]
    by = [torch.tensor(1.5 - 0.5 * k, dtype=term.dtype) for k, term in enumerate(terms)]
    return terms, torch.autograd.grad(terms, both, by)[0]


@pytest.mark.parametrize(("rows", "classes", "labelled"), [(100, 10, 31), (7, 3, 7), (70, 100, 5), (600, 10, 0)])
@pytest.mark.parametrize("two", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_terms_and_gradients(
    rows: int, classes: int, labelled: int, two: bool, shared: bool, dtype: torch.dtype, bound: float
) -> None:
    torch.manual_seed(1)
    both = (3 * torch.randn(rows, 2 * classes)).to(dtype)
    target = torch.randn(rows, classes).softmax(dim=1)
    share = torch.rand(rows) if shared else None
    labels = torch.arange(labelled) % classes
    assert kernels.comparable(both[:, :classes], both[:, classes:], target)
    terms, gradient = found(both, target, share, labels, two)
    exact, expected = found(both.double(), target.double(), None if share is None else share.double(), labels, two)
    assert len(terms) == len(exact) == (3 if two else 2)
    for mine, theirs in zip(terms, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-6, atol=1e-7)
    assert distance(gradient, expected) < bound
