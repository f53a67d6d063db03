"""The consistency methods' terms in one launch: interpreted kernels against plain operations in float64."""

from __future__ import annotations

import pytest
import torch

from fastswa import kernels
from interpreted.stand_in import distance
from kernel_cases import terms_and_gradient


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
    terms, gradient = terms_and_gradient(both, target, share, labels, two)
    exact, expected = terms_and_gradient(
        both.double(), target.double(), None if share is None else share.double(), labels, two
    )
    assert len(terms) == len(exact) == (3 if two else 2)
    for mine, theirs in zip(terms, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-6, atol=1e-7)
    assert distance(gradient, expected) < bound
