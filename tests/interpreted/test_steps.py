"""Whole steps with every kernel that they use, interpreted, against the plain operations in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastswa.kernels.launch import Kernel
from fastswa.layers import build_config, flag_layer, recipe_layer
from fastswa.models import cnn13, network, shake_shake
from fastswa.models.convolution import Convolutional
from fastswa.training.step import Step
from interpreted.stand_in import distance, first_step

FLAGS = ["--split.labels", "20", "--batch.size", "5", "--batch.labelled", "2", "--batch.steps", "2", "--augment.noise",
         "0.1", "--averaging.all.kind", "swa", "--averaging.all.start", "0", "--averaging.all.every", "0"]  # fmt: skip


class NarrowLayer(cnn13._Layer):
    """An eighth as wide."""

    def __init__(self, inputs: int, outputs: int, *others: Any, **options: Any) -> None:
        super().__init__(inputs // 8 or inputs, outputs // 8, *others, **options)


class Small(shake_shake.ShakeShake):
    def __init__(self, **options: Any) -> None:
        super().__init__(depth=14, width=16, **options)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels launched so far."""
    names: set[str] = set()
    launch = Kernel._launch

    def noting(kernel: Kernel, *given: Any, **named: Any) -> None:
        names.add(kernel.jitted.fn.__name__)
        launch(kernel, *given, **named)

    monkeypatch.setattr(Kernel, "_launch", noting)
    return names


def made(recipe: str, flags: list[str], side: int, precision: str) -> Step:
    """Weights' gradients are made as in a captured step, beside others."""
    step = first_step(build_config(recipe_layer(recipe), flag_layer([*FLAGS, *flags])), side, precision)
    assert isinstance(step.state.student, Convolutional)
    step.beside = step.state.student.beside = True
    return step


def stepped(step: Step, count: int) -> dict[str, Tensor]:
    """Every tensor of the state after some steps, each of them averaged."""
    for _ in range(count):
        assert step.state.averages["all"].expect(1.0)
        step()
    return step.state.tensors()


@pytest.mark.parametrize(
    ("recipe", "flags", "side", "steps", "kernels"),
    [
        ("cifar10-cnn-mean-teacher-4k", [], 12, 2, {"_pool_apply_kernel", "_unit_backward_kernel", "_dropout_kernel"}),
        ("cifar10-shake-mean-teacher-4k-short", [], 8, 1, {"_join_kernel", "_unpick_kernel", "_uniform_kernel"}),
        ("cifar10-fixmatch-4k-quick", ["--model.width", "16", "--method.threshold", "0.11"], 8, 1, {"_strong_kernel"}),
    ],
)
def test_a_networks_steps_and_what_it_says_afterwards(
    recipe: str,
    flags: list[str],
    side: int,
    steps: int,
    kernels: set[str],
    launched: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cnn13, "_Layer", NarrowLayer)
    monkeypatch.setattr(cnn13, "Heads", lambda features, *others: network.Heads(features // 8, *others))
    monkeypatch.setattr(shake_shake, "ShakeShake26", Small)
    step, plain = (made(recipe, flags, side, precision) for precision in ("fp32", "fp64"))
    own = step.state.tensors()
    with torch.no_grad():
        for name, tensor in plain.state.tensors().items():
            tensor.copy_(own[name])
    expected = stepped(plain, steps)
    assert launched <= {"_uniform_kernel"}
    found = stepped(step, steps)
    assert launched >= kernels | {"_view_kernel", "_statistics_kernel", "_update_kernel", "_average_kernel"}
    for name, tensor in expected.items():
        # What 32 bits lose is nothing in 64; and a gain before a batch norm has next to no gradient.
        if tensor.is_floating_point() and tensor.any() and ".lost." not in name:
            gain = name.startswith("momentum.") and name.endswith(".original0")
            assert distance(found[name], tensor) < (5e-3 if gain else 1e-4), name

    launched.clear()
    images = torch.randn(3, 3, side, side).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        said = step.state.student.eval()(images).logits
        assert launched >= {"_apply_kernel"}
        assert distance(said, plain.state.student.eval()(images.double()).logits) < 1e-4
