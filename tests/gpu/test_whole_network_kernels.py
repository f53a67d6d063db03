"""Kernels that take a whole network at once, against torch's own operations in float64, on a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastswa import beside, kernels
from fastswa.models.cnn13 import CNN13
from fastswa.models.convolution import Convolutional, Weights
from fastswa.models.resnet9 import ResNet9
from fastswa.models.shake_shake import ShakeShake

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach().double()).norm() / expected.detach().double().norm())


def made(kind: type[Convolutional], **settings: object) -> Convolutional:
    torch.manual_seed(1)
    network = kind(**settings).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1 + 0.5 * torch.rand_like(parameter))
    return network


@pytest.mark.parametrize("kind", [CNN13, ResNet9])
def test_weights_and_their_gradients_are_each_layers_own(kind: type[Convolutional]) -> None:
    network = made(kind)
    plain = copy.deepcopy(network).double()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = network.weights()
    assert {weight.dtype for weight in found.of.values()} == {torch.bfloat16}
    generator = torch.Generator("cuda").manual_seed(2)
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    plain_total = torch.zeros_like(total)
    for layer, own in zip(network.layers, plain.layers, strict=True):
        assert distance(found.of[layer], own.weight) < 4e-3
        factor = torch.randn(own.weight.shape, device="cuda", generator=generator).bfloat16()
        total = total + (found.of[layer] * factor).double().sum()
        plain_total = plain_total + (own.weight * factor.double()).sum()
    names = [name for name, _ in network.named_parameters() if "conv" in name and "bias" not in name]
    gradients = torch.autograd.grad(total, [network.get_parameter(name) for name in names])
    expected = torch.autograd.grad(plain_total, [plain.get_parameter(name) for name in names])
    for name, one, other in zip(names, gradients, expected, strict=True):
        assert distance(one, other) < 1e-5, name


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 1, 1), (2, 0, 1), (1, 1, 2)])
def test_a_convolution_with_its_weights_gradient_on_the_second_stream(stride: int, padding: int, groups: int) -> None:
    torch.manual_seed(2)
    like = {"device": "cuda", "dtype": torch.float64}
    x = torch.randn(8, 16, 12, 12, **like).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(24, 16 // groups, 3, 3, **like).contiguous(memory_format=torch.channels_last).requires_grad_()
    layer = nn.Conv2d(16, 24, 3, stride, padding, groups=groups)
    found = Weights({layer: weight}, beside=True).convolve(layer, x)
    expected = F.conv2d(x, weight, None, stride, padding, 1, groups)
    assert torch.equal(found, expected)
    factor = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, (x, weight), factor)
    beside.meet(x.device)
    for one, other in zip(gradients, torch.autograd.grad(expected, (x, weight), factor), strict=True):
        assert distance(one, other) < 1e-12


def test_a_networks_gradients_are_the_same_with_the_second_stream() -> None:
    network = made(CNN13, dropout=0.0).train()
    x = torch.randn(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    found = []
    for flag in (False, True):
        network.beside = flag
        with torch.backends.cudnn.flags(allow_tf32=False):
            loss = F.cross_entropy(network(x).logits, torch.arange(32, device="cuda") % 10)
            gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True, materialize_grads=True)
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    assert distance(found[1], found[0]) < 5e-3


def test_shake_shakes_gradients_are_the_same_with_the_second_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits, in which weights are cast together and their gradients, the skip's included, may be made beside."""
    from fastswa.noise import Noise

    network = made(ShakeShake, depth=14, width=32).train()
    x = torch.randn(16, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    noise = Noise(torch.tensor([5, 7], dtype=torch.int32, device="cuda"))
    kept = []
    keep = beside.keep
    monkeypatch.setattr(beside, "keep", lambda *tensors: (kept.append(tensors), keep(*tensors)))
    found = []
    for flag in (False, True):
        network.beside = flag
        assert len(kept) == 0
        with torch.autocast("cuda", torch.bfloat16):
            logits = network(x, noise).logits.float()
        loss = F.cross_entropy(logits, torch.arange(16, device="cuda") % 10)
        gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True, materialize_grads=True)
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    # All but the stem, whose three channels are filled up.
    assert len(kept) == len(layers) - 1
    assert distance(found[1], found[0]) < 1e-2


@pytest.mark.parametrize("training", [True, False])
def test_a_shake_shake_block_is_the_plain_one(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastswa.noise import Noise

    network = made(ShakeShake, depth=14, width=32).train(training)
    x = torch.randn(16, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    noise = Noise(torch.tensor([5, 7], dtype=torch.int32, device="cuda"))
    plain = copy.deepcopy(network).double()

    def run(net: nn.Module, images: Tensor) -> list[Tensor]:
        if not training:
            with torch.no_grad():
                return [net(images, noise).logits]
        logits = net(images, noise).logits
        return [logits, *torch.autograd.grad(logits.square().sum(), list(net.parameters()), materialize_grads=True,
                                             allow_unused=True)]  # fmt: skip

    with torch.backends.cudnn.flags(allow_tf32=False):
        found = run(network, x)
    monkeypatch.setattr(kernels, "fusable", lambda x, pool=False: False)
    expected = run(plain, x.double())
    names = ["logits", *(name for name, _ in network.named_parameters())]
    for name, one, other in zip(names, found, expected, strict=False):
        if float(other.detach().norm()) > 1e-6:
            # A ReLU's input within rounding of zero may take the other side.
            assert distance(one, other) < 5e-3, name
    for name, one in network.named_buffers():
        if "running" in name and training:
            assert distance(one, plain.get_buffer(name)) < 1e-5, name


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_picked_pixels_are_convolved_as_two_groups(dtype: torch.dtype, bound: float) -> None:
    from fastswa.kernels.pick import PickAndConvolve

    torch.manual_seed(2)
    x = torch.randn(5, 48, 12, 8, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    weight, direction = torch.randn(32, 48, 1, 1, device="cuda").to(dtype), torch.randn(5, 32, 6, 4, device="cuda")
    assert kernels.pickable(x)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    y = PickAndConvolve.apply(x, weight, False)
    assert y.is_contiguous(memory_format=torch.channels_last)
    found = [y, *torch.autograd.grad(y, (x, weight), direction.to(dtype))]
    plain_x, plain_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    picked = torch.cat([plain_x[:, :, 0::2, 0::2], plain_x[:, :, 1::2, 1::2]], dim=1)
    z = F.conv2d(picked, plain_weight, groups=2)
    expected = [z, *torch.autograd.grad(z, (plain_x, plain_weight), direction.to(dtype).double())]
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < bound


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("with_teacher", [True, False])
def test_update_is_torchs_sgd_and_a_moving_average(nesterov: bool, with_teacher: bool) -> None:
    from fastswa.kernels.update import sgd_and_teacher

    network = made(CNN13)
    parameters = [p.detach() for p in network.parameters()]
    torch.manual_seed(3)
    momenta, teacher = ([torch.randn_like(p) for p in parameters] for _ in range(2))
    plain = [p.double().clone().requires_grad_() for p in parameters]
    after = [p.double() for p in teacher]
    optimiser = torch.optim.SGD(plain, lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=nesterov)
    for p, m in zip(plain, momenta, strict=True):
        optimiser.state[p]["momentum_buffer"] = m.double()
    for _ in range(3):
        gradients = [torch.randn(p.shape, device="cuda") for p in parameters]
        for p, g in zip(plain, gradients, strict=True):
            p.grad = g.double()
        optimiser.step()
        after = [t + 0.3 * (p.detach() - t) for t, p in zip(after, plain, strict=True)]
        sgd_and_teacher(
            parameters, momenta, teacher if with_teacher else None, gradients,
            torch.tensor(0.1, device="cuda"), torch.tensor(0.3, device="cuda"), 0.9, 1e-2, nesterov,
        )  # fmt: skip
    for found, expected in zip(parameters, plain, strict=True):
        assert distance(found, expected) < 1e-6
    if with_teacher:
        for found, expected in zip(teacher, after, strict=True):
            assert distance(found, expected) < 1e-6
