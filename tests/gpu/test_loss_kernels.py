"""The consistency methods' terms in one launch against plain operations in float64, on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastswa import kernels
from kernel_cases import terms_and_gradient

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("rows", "classes", "labelled"), [(100, 10, 31), (7, 3, 7), (512, 100, 64), (130, 10, 0)])
@pytest.mark.parametrize("two", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
def test_terms_and_gradients(
    rows: int, classes: int, labelled: int, two: bool, shared: bool, dtype: torch.dtype, bound: float
) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    both = (3 * torch.randn(rows, 2 * classes, device="cuda", generator=generator)).to(dtype)
    target = torch.randn(rows, classes, device="cuda", generator=generator).softmax(dim=1)
    share = torch.rand(rows, device="cuda", generator=generator) if shared else None
    labels = torch.arange(labelled, device="cuda") % classes
    assert kernels.comparable(both[:, :classes], both[:, classes:], target)
    terms, gradient = terms_and_gradient(both, target, share, labels, two)
    exact, expected = terms_and_gradient(
        both.double(), target.double(), None if share is None else share.double(), labels, two
    )
    assert len(terms) == len(exact) == (3 if two else 2)
    for mine, theirs in zip(terms, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-7)
    assert float((gradient.double() - expected).norm() / expected.norm()) < bound


def test_a_target_that_learns_too_is_compared_by_plain_operations() -> None:
    logits = torch.randn(4, 3, device="cuda")
    assert not kernels.comparable(logits, logits, logits.softmax(dim=1).requires_grad_())
    assert not kernels.comparable(logits.double(), logits.double(), logits.double().softmax(dim=1))
