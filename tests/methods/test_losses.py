"""The loss terms against loops over examples in float64, written from the paper's scalings."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toy import cross_entropy, kl_divergence, softmax, squared_error, tie_term

from fastswa.methods.losses import classification, entropy, kl, probabilities, squared, tie


def logits(seed: int, rows: int = 7, classes: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    return (3 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))).to(dtype)


def targets(seed: int) -> Tensor:
    return torch.tensor([softmax(row) for row in logits(seed).numpy()], dtype=torch.float64)


def test_classification_is_summed_over_the_labelled_and_divided_by_the_whole_batch() -> None:
    labels = torch.tensor([2, 0, 3])
    assert classification(logits(0), labels).item() == pytest.approx(cross_entropy(logits(0).numpy(), labels))
    # Equal logits: each labelled example costs log 4, three of them over a batch of eight.
    assert classification(torch.zeros(8, 4), labels).item() == pytest.approx(3 * math.log(4) / 8)


def test_classification_of_a_wholly_labelled_batch_is_the_mean() -> None:
    labels = torch.arange(7) % 4
    expected = torch.nn.functional.cross_entropy(logits(0), labels)
    assert classification(logits(0), labels).item() == pytest.approx(expected.item())


def test_squared_is_the_mean_over_classes() -> None:
    found = squared(logits(0), targets(1))
    assert found.shape == (7,)
    assert found.mean().item() == pytest.approx(squared_error(logits(0).numpy(), targets(1).tolist()))
    # (1/2, 1/2) against (1, 0): (1/4 + 1/4) / 2.
    assert squared(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])).tolist() == [0.25]


def test_kl_is_summed_over_classes_with_the_target_first() -> None:
    found = kl(logits(0), targets(1))
    assert found.shape == (7,)
    assert found.mean().item() == pytest.approx(kl_divergence(logits(0).numpy(), targets(1).tolist()))
    oracle = torch.nn.functional.kl_div(logits(0).log_softmax(dim=1), targets(1), reduction="batchmean")
    assert found.mean().item() == pytest.approx(oracle.item())
    assert torch.allclose(kl(logits(0), targets(0)), torch.zeros(7, dtype=torch.float64), atol=1e-12)


def test_kl_of_a_certain_target_is_finite() -> None:
    z = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    found = kl(z, torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64))
    assert found.item() == pytest.approx(math.log(4))
    (gradient,) = torch.autograd.grad(found.sum(), z)
    assert gradient.flatten().tolist() == pytest.approx([0.25, -0.75, 0.25, 0.25])


def test_entropy() -> None:
    expected = [-sum(p * math.log(p) for p in softmax(row)) for row in logits(0).numpy()]
    assert entropy(logits(0)).tolist() == pytest.approx(expected)
    assert entropy(torch.zeros(1, 5)).item() == pytest.approx(math.log(5))
    certain = entropy(torch.tensor([[1000.0, 0.0]]))
    assert certain.tolist() == [0.0]


def test_tie_is_the_mean_over_classes_and_examples() -> None:
    found = tie(logits(0), logits(1)).item()
    assert found == pytest.approx(tie_term(logits(0).numpy(), logits(1).numpy()))
    assert tie(torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 6.0]])).item() == 12.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_terms_are_computed_in_at_least_32_bits(dtype: torch.dtype) -> None:
    a, b = logits(0, dtype=dtype), logits(1, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q = probabilities(b)
    terms = [probabilities(a), classification(a, torch.tensor([1])), squared(a, q), kl(a, q), entropy(a), tie(a, b)]
    assert all(term.dtype == wide for term in terms)
    exact_q = torch.tensor([softmax(row) for row in b.double().numpy()], dtype=torch.float64)
    exact = kl_divergence(a.double().numpy(), exact_q.tolist())
    assert kl(a, q).mean().item() == pytest.approx(exact, rel=1e-5)
    assert squared(a, q).mean().item() == pytest.approx(squared_error(a.double().numpy(), exact_q.tolist()), rel=1e-5)
