"""Operations of our own: what they compute, their gradients, compiled or not, and what they import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fastswa.operation import compiled, operation


@operation("test_scaled", differentiable=True)
def scaled(x: Tensor, factors: list[float]) -> Tensor:
    return x * sum(factors)


@scaled.register_fake
def _(x: Tensor, factors: list[float]) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, dy: (scaled(dy, ctx.factors), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factors", inputs[1]),
)


@operation("test_count", mutates=("counter",))
def count(counter: Tensor, by: Tensor) -> Tensor:
    counter.add_(by.sum())
    return by + 1


@count.register_fake
def _(counter: Tensor, by: Tensor) -> Tensor:
    return torch.empty_like(by)


def test_value_and_gradient() -> None:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    y = scaled(x, [1.5, 0.5])
    assert torch.equal(y, 2 * x)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2.0))


@operation("test_plain")
def plain(x: Tensor) -> Tensor:
    return x * 2


def test_one_without_a_gradient_refuses_to_be_differentiated() -> None:
    y = plain(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="fastswa::test_plain has no derivative"):
        y.sum().backward()
    with torch.no_grad():
        assert torch.equal(plain(torch.ones(3, requires_grad=True)), torch.full((3,), 2.0))


def test_compiled_code_holds_it_as_one_operation() -> None:
    seen: list[str] = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def work(counter: Tensor, x: Tensor) -> Tensor:
        return scaled(count(counter, x), [3.0]) + 1

    counter, x = torch.zeros(1), torch.arange(4.0)
    compiled = torch.compile(work, backend=backend, fullgraph=True)
    assert torch.equal(compiled(counter, x), 3 * (x + 1) + 1)
    assert float(counter) == 6.0
    assert [name for name in seen if "fastswa" in name] == ["fastswa.test_count.default", "fastswa.test_scaled.default"]


def test_a_call_does_not_import_the_compiler() -> None:
    program = (
        "import sys, torch\n"
        "from fastswa.models.convolution import _convolve\n"
        "x = torch.randn(1, 2, 4, 4).requires_grad_()\n"
        "_convolve(x, torch.randn(3, 2, 1, 1), [1, 1], [0, 0], 1)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_compiler_names_an_operation_and_not_what_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.exc import MissingOperatorWithoutDecomp, OperatorIssue

    # As torch has it, whatever was compiled in this process before.
    monkeypatch.setattr(OperatorIssue, "operator_str", staticmethod(lambda target, args, kwargs: f"{target} {args}"))
    name = torch.ops.fastswa.test_scaled.default
    assert "led to it" in MissingOperatorWithoutDecomp.operator_str(name, ["led to it"], {})
    compiled(torch.neg)
    assert MissingOperatorWithoutDecomp.operator_str(name, ["led to it"], {}) == "  target: fastswa.test_scaled.default"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_another_batch_is_compiled_for_its_own_size() -> None:
    seen: list[list[object]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[object]) -> Callable[..., object]:
        seen.append(inputs)
        return graph.forward

    doubled = compiled(lambda x: 2 * x, backend=backend)
    for size in (3, 5, 7):
        assert doubled(torch.ones(size)).tolist() == [2.0] * size
    assert [tuple(x.shape) for (x,) in seen] == [(3,), (5,), (7,)]
    assert all(type(size) is int for (x,) in seen for size in x.shape)
