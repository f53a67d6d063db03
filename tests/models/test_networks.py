"""The 13-layer and the small CNN against a plain functional pass, and their dropout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastswa.batch_norm import frozen_statistics
from fastswa.models import build
from fastswa.models.cnn13 import CNN13
from fastswa.models.network import Dropout
from fastswa.models.small import SmallCNN
from fastswa.noise import Noise, step_words


def noise_of(step: int = 0) -> Noise:
    return Noise(torch.from_numpy(step_words(0, "step", step, 1)[0].copy()))


def unsettle(network: nn.Module) -> None:
    """Weights, gains and statistics that no default could stand in for."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in [*network.parameters(), *network.buffers()]:
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.5 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)).add_(0.01)


def weight_of(state: dict[str, Tensor], name: str) -> Tensor:
    """gain * direction / |direction|, per output channel; or the plain weight."""
    if f"{name}.weight" in state:
        return state[f"{name}.weight"]
    gain, direction = (state[f"{name}.parametrizations.weight.original{i}"] for i in (0, 1))
    length = direction.flatten(1).square().sum(dim=1).sqrt()
    return direction * (gain.flatten() / length).view(-1, *[1] * (direction.dim() - 1))


def layer(x: Tensor, state: dict[str, Tensor], name: str, padding: int, slope: float = 0.1) -> Tensor:
    """Convolution, batch norm by running statistics, LeakyReLU."""
    x = F.conv2d(x, weight_of(state, f"{name}.conv"), state.get(f"{name}.conv.bias"), padding=padding)
    mean, var, gain, shift = (
        state[f"{name}.norm.{key}"].view(1, -1, 1, 1) for key in ("running_mean", "running_var", "weight", "bias")
    )
    x = (x - mean) / (var + 1e-5).sqrt() * gain + shift
    return torch.where(x > 0, x, slope * x)


def heads(features: Tensor, state: dict[str, Tensor]) -> list[Tensor]:
    return [features @ weight_of(state, f"heads.{h}").T + state[f"heads.{h}.bias"] for h in ("first", "second")]


def test_cnn13_is_the_papers_table() -> None:
    torch.manual_seed(0)
    network = CNN13(channels=3, classes=4, heads=2).double().eval()
    unsettle(network)
    state = network.state_dict()
    images = torch.randn(2, 3, 20, 20, dtype=torch.float64)
    x = images
    for i in range(3):
        x = layer(x, state, f"block1.{i}", 1)
    x = F.max_pool2d(x, 2)
    for i in range(3):
        x = layer(x, state, f"block2.{i}", 1)
    x = F.max_pool2d(x, 2)
    for i in range(3):
        x = layer(x, state, f"block3.{i}", 0)
    assert x.shape == (2, 128, 3, 3)
    first, second = heads(x.mean(dim=(2, 3)), state)
    with torch.no_grad():
        output = network(images)
    assert torch.allclose(output.logits, first, rtol=1e-9)
    assert torch.allclose(output.consistency, second, rtol=1e-9)


@pytest.mark.parametrize("padded", [False, True])
def test_cnn13_of_domain_adaptation(padded: bool) -> None:
    """No weight norm, ReLU; padded, the 1x1 convolutions see two rings of zeros, and the top left is pooled."""
    torch.manual_seed(0)
    network = CNN13(classes=9, weight_norm=False, activation="relu", padded=padded).double().eval()
    unsettle(network)
    state = network.state_dict()
    assert not [name for name in state if "parametrizations" in name]
    images = torch.randn(2, 3, 20, 20, dtype=torch.float64)
    x = images
    for block in (1, 2):
        for i in range(3):
            x = layer(x, state, f"block{block}.{i}", 1, slope=0.0)
        x = F.max_pool2d(x, 2)
    for i, padding in enumerate((0, int(padded), int(padded))):
        x = layer(x, state, f"block3.{i}", padding, slope=0.0)
    assert x.shape[2:] == ((7, 7) if padded else (3, 3))
    features = F.avg_pool2d(x, 3, stride=7)[:, :, 0, 0] if padded else x.mean(dim=(2, 3))
    with torch.no_grad():
        output = network(images)
    assert torch.allclose(output.features, features, rtol=1e-9)
    assert output.consistency is output.logits


@pytest.mark.parametrize(
    ("block", "kernels", "widths"),
    [(1, (3, 3, 3), (128, 128, 128)), (2, (3, 3, 3), (256, 256, 256)), (3, (3, 1, 1), (512, 256, 128))],
)
def test_cnn13_kernels_and_widths(block: int, kernels: tuple[int, ...], widths: tuple[int, ...]) -> None:
    with torch.device("meta"):
        layers = getattr(CNN13(), f"block{block}")
    assert tuple(layer.conv.weight.shape[2] for layer in layers) == kernels
    assert tuple(layer.conv.weight.shape[0] for layer in layers) == widths


def test_weight_norm_has_the_value_worked_out_by_hand() -> None:
    head = CNN13(channels=1, classes=2).heads.first
    gain, direction = head.parametrizations.weight.original0, head.parametrizations.weight.original1
    assert gain.shape == (2, 1)
    with torch.no_grad():
        direction.zero_()
        direction[0, :2] = torch.tensor([3.0, 4.0])
        direction[1, :3] = torch.tensor([1.0, 2.0, 2.0])
        gain.copy_(torch.tensor([[10.0], [0.5]]))
    # Lengths 5 and 3: rows 10 (3, 4) / 5 and 0.5 (1, 2, 2) / 3.
    assert head.weight[0, :3].tolist() == pytest.approx([6.0, 8.0, 0.0])
    assert head.weight[1, :4].tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 3, 0.0])


def test_weight_norm_of_a_convolution_is_per_output_channel() -> None:
    conv = CNN13(channels=2, classes=2).block1[0].conv
    gain, direction = conv.parametrizations.weight.original0, conv.parametrizations.weight.original1
    assert gain.shape == (128, 1, 1, 1)
    with torch.no_grad():
        direction.fill_(1.0)
        gain.fill_(6.0)
    # A direction of 2 * 3 * 3 ones has length sqrt(18).
    assert conv.weight.flatten().tolist() == pytest.approx([6 / 18**0.5] * conv.weight.numel())


def test_cnn13_starts_from_torchs_default_initialisation() -> None:
    torch.manual_seed(3)
    network = CNN13(channels=3)
    torch.manual_seed(3)
    plain = nn.Conv2d(3, 128, 3, padding=1)
    assert torch.allclose(network.block1[0].conv.weight, plain.weight, atol=1e-7)
    assert torch.equal(network.block1[0].conv.bias, plain.bias)


def test_small_network_is_four_convolutions_and_one_pooling() -> None:
    torch.manual_seed(0)
    network = SmallCNN(channels=1, classes=3, heads=2, width=4).double().eval()
    unsettle(network)
    state = network.state_dict()
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    x = layer(layer(images, state, "block1.0", 1), state, "block1.1", 1)
    x = F.max_pool2d(x, 2)
    x = layer(layer(x, state, "block2.0", 1), state, "block2.1", 1)
    first, second = heads(x.mean(dim=(2, 3)), state)
    with torch.no_grad():
        output = network(images)
    assert torch.allclose(output.logits, first, rtol=1e-9)
    assert torch.allclose(output.consistency, second, rtol=1e-9)
    assert state["block2.1.conv.weight"].shape == (8, 8, 3, 3)


def trained_layer(x: Tensor, state: dict[str, Tensor], name: str, padding: int) -> Tensor:
    """The same layer in training mode: torch's batch norm of the whole convolution, statistics updated in `state`."""
    x = F.conv2d(x, weight_of(state, f"{name}.conv"), state.get(f"{name}.conv.bias"), padding=padding)
    mean, var, gain, shift = (state[f"{name}.norm.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
    return F.leaky_relu(F.batch_norm(x, mean, var, gain, shift, training=True, momentum=0.1), 0.1)


@pytest.mark.parametrize(
    ("make", "blocks", "paddings"),
    [
        (lambda: CNN13(channels=1, classes=2, heads=2, dropout=0.0), 3, (1, 1, 1, 1, 1, 1, 0, 0, 0)),
        (lambda: SmallCNN(channels=1, classes=2, heads=2, width=4, dropout=0.0), 2, (1, 1, 1, 1)),
    ],
    ids=["cnn13", "small"],
)
def test_training_pass_equals_torchs_batch_norm_in_value_gradient_and_statistics(
    make: Callable[[], nn.Module], blocks: int, paddings: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    network = make().double().train()
    unsettle(network)
    parameters = dict(network.named_parameters())
    state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    for name in parameters:
        state[name].requires_grad_()
    for batch in torch.randn(2, 3, 1, 12, 12, dtype=torch.float64):
        output = network(batch)
        x = batch
        for index, padding in enumerate(paddings):
            block, place = divmod(index, len(paddings) // blocks)
            x = F.max_pool2d(x, 2) if place == 0 and block > 0 else x
            x = trained_layer(x, state, f"block{block + 1}.{place}", padding)
        first, second = heads(x.mean(dim=(2, 3)), state)
        assert torch.allclose(output.logits, first, rtol=1e-8, atol=1e-10)
        assert torch.allclose(output.consistency, second, rtol=1e-8, atol=1e-10)
        ours = torch.autograd.grad(
            output.logits.square().sum() + output.consistency.sum(),
            list(parameters.values()),
            allow_unused=True,
            materialize_grads=True,
        )
        theirs = torch.autograd.grad(first.square().sum() + second.sum(), [state[name] for name in parameters])
        for name, a, b in zip(parameters, ours, theirs, strict=True):
            assert torch.allclose(a, b, rtol=1e-6, atol=1e-8), name
    for name, buffer in network.named_buffers():
        if "running" in name:
            assert torch.allclose(buffer, state[name], rtol=1e-10), name


@pytest.mark.parametrize("make", [CNN13, SmallCNN])
def test_frozen_statistics_changes_no_value_of_a_training_pass(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    network = make(channels=1, classes=2).double().train()
    x = torch.randn(3, 1, 12, 12, dtype=torch.float64)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with frozen_statistics(network):
        frozen = network(x, noise_of()).logits
    assert all(torch.equal(before[name], buffer) for name, buffer in network.named_buffers())
    assert torch.allclose(frozen, network(x, noise_of()).logits, rtol=1e-12)
    assert not any(torch.equal(before[name], b) for name, b in network.named_buffers() if "running" in name)


NETWORKS = [SmallCNN(channels=1, classes=3, width=4), CNN13(channels=1, classes=3)]


@pytest.mark.parametrize("network", NETWORKS, ids=["small", "cnn13"])
def test_passes_differ_by_scope_and_step_and_repeat_within_one(network: nn.Module) -> None:
    network.train()
    x = torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        student = network(x, noise_of().scope("student")).logits
        again = network(x, noise_of().scope("student")).logits
        teacher = network(x, noise_of().scope("teacher")).logits
        later = network(x, noise_of(1).scope("student")).logits
    assert torch.equal(student, again)
    for other in (teacher, later):
        assert float((student - other).abs().min()) > 1e-6


@pytest.mark.parametrize("network", NETWORKS, ids=["small", "cnn13"])
def test_evaluation_draws_nothing(network: nn.Module) -> None:
    network.eval()
    x = torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(network(x, noise_of().scope("student")).logits, network(x).logits)


def test_dropout_takes_its_mask_from_the_noise() -> None:
    x = torch.randn(4, 5, 3, 3, generator=torch.Generator().manual_seed(0))
    layer = Dropout("dropout1", 0.4)
    mask = noise_of().uniform("dropout1", x.shape) >= 0.4
    assert torch.allclose(layer(x, noise_of()), x * mask / 0.6)
    assert torch.equal(layer.eval()(x, noise_of()), x)
    assert torch.equal(Dropout("dropout1", 0.0)(x, noise_of()), x)


def test_dropout_without_noise_is_torchs() -> None:
    x = torch.ones(1000)
    torch.manual_seed(0)
    ours = Dropout("dropout1", 0.4)(x, None)
    torch.manual_seed(0)
    assert torch.equal(ours, F.dropout(x, 0.4))
    assert not torch.equal(ours, Dropout("dropout1", 0.4)(x, None))


def test_the_two_dropouts_of_cnn13_draw_different_numbers() -> None:
    seen: dict[str, Tensor] = {}

    class Recording(Noise):
        def uniform(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:  # type: ignore[override]
            seen[name] = super().uniform(name, shape, dtype)
            return seen[name]

    CNN13(channels=1)(torch.randn(2, 1, 12, 12), Recording(noise_of().words))
    assert {name: tuple(drawn.shape) for name, drawn in seen.items()} == {
        "dropout1": (2, 128, 6, 6),
        "dropout2": (2, 256, 3, 3),
    }
    assert not torch.equal(seen["dropout1"].flatten()[:100], seen["dropout2"].flatten()[:100])


class Backward(TorchDispatchMode):
    """Counts what a backward pass calls, and names what is given images whose channels do not lie last."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.others = 0, list[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        images = [a for a in args if isinstance(a, Tensor) and a.dim() == 4]
        if "backward" in func.name() and images:
            self.calls += 1
            self.others += [func.name() for a in images if not a.is_contiguous(memory_format=torch.channels_last)]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["cnn13", "small", "resnet9", "wrn-28-2"])
def test_gradients_lie_as_the_images_do(name: str) -> None:
    """A gradient with channels first makes an operation of a CPU up to 25 times as slow."""
    options = {"width": 8} if name in ("small", "resnet9") else {}
    network = build(name, channels=3, classes=4, heads=2, size=32, **options).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    output = network(torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last), noise_of())
    with Backward() as seen:
        (output.logits + output.consistency).square().mean().backward()
    assert seen.calls > 15
    assert seen.others == []
