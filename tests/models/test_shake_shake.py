"""Shake-Shake: the mixing and its gradients, the skip paths, the whole network by a plain functional pass."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastswa.models.convolution import Weights
from fastswa.models.shake_shake import ShakeShake, ShakeShake26, _Block, _Downsample, shake
from fastswa.noise import Noise, step_words


def noise_of(step: int = 0) -> Noise:
    return Noise(torch.from_numpy(step_words(0, "step", step, 1)[0].copy()))


def per_image(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1)


def normalised(x: Tensor, state: dict[str, Tensor], name: str, *, training: bool = False) -> Tensor:
    mean, var, gain, shift = (
        state[f"{name}.{key}"].view(1, -1, 1, 1) for key in ("running_mean", "running_var", "weight", "bias")
    )
    if training:
        mean, var = x.mean(dim=(0, 2, 3), keepdim=True), x.var(dim=(0, 2, 3), keepdim=True, unbiased=False)
    return (x - mean) / (var + 1e-5).sqrt() * gain + shift


def weights_of(part: torch.nn.Module) -> Weights:
    """The weights of a part of a network, as they are."""
    return Weights({m: m.weight for m in part.modules() if isinstance(m, torch.nn.Conv2d)}, beside=False)


def unsettle(network: torch.nn.Module) -> dict[str, Tensor]:
    """Gains, shifts and statistics away from their defaults; the state dict."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point() and "conv" not in name and "stem" not in name:
                tensor.add_(0.5 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype))
    return network.state_dict()


def test_shake_has_the_values_and_gradients_worked_out_by_hand() -> None:
    a = torch.tensor([[2.0], [10.0]], dtype=torch.float64).view(2, 1, 1, 1).requires_grad_()
    b = torch.tensor([[4.0], [-2.0]], dtype=torch.float64).view(2, 1, 1, 1).requires_grad_()
    forward, backward = per_image(0.25, 0.75), per_image(0.9, 0.125)
    mixed = shake(a, b, forward, backward)
    # 0.25 * 2 + 0.75 * 4 and 0.75 * 10 + 0.25 * (-2).
    assert mixed.flatten().tolist() == pytest.approx([3.5, 7.0], rel=1e-14)
    (3.0 * mixed).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.flatten().tolist() == pytest.approx([3 * 0.9, 3 * 0.125], rel=1e-14)
    assert b.grad.flatten().tolist() == pytest.approx([3 * 0.1, 3 * 0.875], rel=1e-14)


def test_shakes_gradient_goes_through_what_follows_at_the_forward_value() -> None:
    a, b = per_image(2.0).requires_grad_(), per_image(4.0).requires_grad_()
    mixed = shake(a, b, per_image(0.25), per_image(0.5))
    (mixed**2).sum().backward()
    # The square is differentiated at the forward value 3.5; only the branches' shares are the backward ones.
    assert a.grad is not None
    assert a.grad.item() == pytest.approx(2 * 3.5 * 0.5)


def test_forward_and_backward_numbers_are_drawn_apart_for_each_image_and_block() -> None:
    images = 4096
    like = torch.zeros(images, 1, 1, 1, dtype=torch.float64)
    block, other = _Block("block3", 2, 2, 1), _Block("block4", 2, 2, 1)
    draws = [*block._mixing(like, noise_of()), *other._mixing(like, noise_of()), *block._mixing(like, noise_of(1))]
    assert all(draw.shape == (images,) for draw in draws)
    table = torch.stack([draw.flatten() for draw in draws]).double()
    bound = 5 / math.sqrt(images)
    assert float((torch.corrcoef(table) - torch.eye(6)).abs().max()) < bound
    assert float((table.mean(dim=1) - 0.5).abs().max()) < bound / math.sqrt(12)
    assert float((table.var(dim=1) - 1 / 12).abs().max()) < bound / 12
    assert torch.equal(draws[0].flatten(), noise_of().uniform("block3/forward", (images,)).double())
    assert torch.equal(draws[1].flatten(), noise_of().uniform("block3/backward", (images,)).double())


def test_without_noise_the_numbers_come_from_torchs_generator() -> None:
    block, like = _Block("block1", 2, 2, 1), torch.zeros(64, 2, 1, 1)
    torch.manual_seed(0)
    first = block._mixing(like, None)
    torch.manual_seed(0)
    again = block._mixing(like, None)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], block._mixing(like, None)[0])


def branch(x: Tensor, state: dict[str, Tensor], name: str, stride: int, training: bool = False) -> Tensor:
    """ReLU, convolution, batch norm, ReLU, convolution, batch norm."""
    x = F.conv2d(F.relu(x), state[f"{name}.conv1.weight"], stride=stride, padding=1)
    x = F.relu(normalised(x, state, f"{name}.norm1", training=training))
    x = F.conv2d(x, state[f"{name}.conv2.weight"], padding=1)
    return normalised(x, state, f"{name}.norm2", training=training)


def downsampled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The grouped 1x1 convolution of even and odd pixels, one output pixel at a time."""
    count, _, height, width = x.shape
    outputs = len(weight)
    result = torch.zeros(count, outputs, height // 2, width // 2, dtype=x.dtype)
    for n, o, i, j in (
        (n, o, i, j)
        for n in range(count)
        for o in range(outputs)
        for i in range(height // 2)
        for j in range(width // 2)
    ):
        shift = 0 if o < outputs // 2 else 1
        pixel = x[n, :, 2 * i + shift, 2 * j + shift].clamp(min=0)
        result[n, o, i, j] = (weight[o, :, 0, 0] * pixel).sum() + bias[o]
    return result


def test_skip_between_stages_takes_even_and_odd_shifted_pixels() -> None:
    torch.manual_seed(0)
    skip = _Downsample(3, 4).double().eval()
    state = unsettle(skip)
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    expected = normalised(downsampled(x, state["conv.weight"], state["conv.bias"]), state, "norm")
    with torch.no_grad():
        assert torch.allclose(skip(x, F.relu(x), weights_of(skip)), expected, rtol=1e-10)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (3, 4, 1), (2, 4, 2)])
def test_block_in_evaluation_adds_the_skip_path_to_half_of_each_branch(inputs: int, outputs: int, stride: int) -> None:
    torch.manual_seed(0)
    block = _Block("block1", inputs, outputs, stride).double().eval()
    state = unsettle(block)
    x = torch.randn(2, inputs, 4, 4, dtype=torch.float64)
    if stride == 2:
        skip = normalised(downsampled(x, state["skip.conv.weight"], state["skip.conv.bias"]), state, "skip.norm")
    elif inputs != outputs:
        skip = normalised(F.conv2d(x, state["skip.conv.weight"]), state, "skip.norm")
        assert "skip.conv.bias" not in state
    else:
        skip = x
        assert not any(name.startswith("skip") for name in state)
    expected = skip + 0.5 * branch(x, state, "branch1", stride) + 0.5 * branch(x, state, "branch2", stride)
    with torch.no_grad():
        assert torch.allclose(block(x, F.relu(x), F.relu(x), weights_of(block), noise_of())[0], expected, rtol=1e-10)
        assert torch.allclose(block(x, F.relu(x), F.relu(x), weights_of(block), None)[0], expected, rtol=1e-10)


def test_block_in_training_mixes_by_the_noises_numbers() -> None:
    torch.manual_seed(0)
    block = _Block("block2", 3, 3, 1).double().train()
    state = {name: tensor.clone() for name, tensor in unsettle(block).items()}
    x = torch.randn(4, 3, 4, 4, dtype=torch.float64)
    a, b = (branch(x, state, name, 1, training=True) for name in ("branch1", "branch2"))
    alpha, beta = (
        noise_of().uniform(f"block2/{side}", (4, 1, 1, 1), torch.float64) for side in ("forward", "backward")
    )
    out = block(x, F.relu(x), F.relu(x), weights_of(block), noise_of())[0]
    for name in ("branch1", "branch2"):
        convolved = F.conv2d(F.relu(x), state[f"{name}.conv1.weight"], padding=1)
        norm = getattr(block, name).norm1
        mean = 0.9 * state[f"{name}.norm1.running_mean"] + 0.1 * convolved.mean(dim=(0, 2, 3))
        variance = 0.9 * state[f"{name}.norm1.running_var"] + 0.1 * convolved.var(dim=(0, 2, 3))
        assert torch.allclose(norm.running_mean, mean, rtol=1e-10)
        assert torch.allclose(norm.running_var, variance, rtol=1e-10)
    assert torch.allclose(out, x + alpha * a + (1 - alpha) * b, rtol=1e-9)
    # The last shift of a branch gets the plain sum of its share of the gradient.
    out.sum().backward()
    for shares, name in ((beta, "branch1"), (1 - beta, "branch2")):
        gradient = getattr(block, name).norm2.bias.grad
        assert gradient.tolist() == pytest.approx([float(shares.sum()) * 16] * 3, rel=1e-9)


def test_network_is_stem_blocks_average_and_heads() -> None:
    torch.manual_seed(0)
    network = ShakeShake(depth=14, width=4, channels=2, classes=3, heads=2).double().eval()
    state = unsettle(network)
    images = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    x = F.conv2d(images, state["stem.weight"], padding=1)
    for index in range(6):
        name, stride = f"blocks.{index}", 2 if index in (2, 4) else 1
        if stride == 2:
            skip = downsampled(x, state[f"{name}.skip.conv.weight"], state[f"{name}.skip.conv.bias"])
            skip = normalised(skip, state, f"{name}.skip.norm")
        elif index == 0:
            skip = normalised(F.conv2d(x, state[f"{name}.skip.conv.weight"]), state, f"{name}.skip.norm")
        else:
            skip = x
        x = skip + 0.5 * (branch(x, state, f"{name}.branch1", stride) + branch(x, state, f"{name}.branch2", stride))
    assert x.shape == (2, 16, 2, 2)
    features = x.mean(dim=(2, 3))
    with torch.no_grad():
        output = network(images)
    assert torch.allclose(output.features, features, rtol=1e-9)
    for head, logits in (("first", output.logits), ("second", output.consistency)):
        expected = features @ state[f"heads.{head}.weight"].T + state[f"heads.{head}.bias"]
        assert torch.allclose(logits, expected, rtol=1e-9)


def test_passes_differ_by_scope_and_step_and_repeat_within_one() -> None:
    torch.manual_seed(0)
    network = ShakeShake(depth=8, width=4).train()
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        student = network(x, noise_of().scope("student")).logits
        assert torch.equal(student, network(x, noise_of().scope("student")).logits)
        for other in (noise_of().scope("teacher"), noise_of(1).scope("student")):
            assert float((student - network(x, other).logits).abs().min()) > 1e-6
        network.eval()
        assert torch.equal(network(x, noise_of().scope("student")).logits, network(x).logits)


def test_stages_have_four_blocks_of_96_192_and_384_channels() -> None:
    with torch.device("meta"):
        network = ShakeShake26()
    assert [block.branch1.conv2.weight.shape[0] for block in network.blocks] == [96] * 4 + [192] * 4 + [384] * 4
    assert [block.branch2.conv1.stride[0] for block in network.blocks] == [1] * 4 + [2, 1, 1, 1] * 2
    assert len({block.name for block in network.blocks}) == 12


def test_convolutions_start_he_normal_by_fan_out() -> None:
    torch.manual_seed(0)
    network = ShakeShake(depth=8, width=32)
    for conv in (network.stem, network.blocks[1].branch1.conv1, network.blocks[2].branch2.conv2):
        weight = conv.weight.detach().double()
        expected = math.sqrt(2 / (weight.shape[0] * 9))
        assert float(weight.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * weight.numel()))
        assert abs(float(weight.mean())) < 5 * expected / math.sqrt(weight.numel())
        # A uniform distribution of the same deviation would end at sqrt(3) deviations.
        assert float(weight.abs().max()) > 2.5 * expected


def test_wrong_depth_is_refused() -> None:
    with pytest.raises(ValueError, match=r"6n \+ 2, not 27"):
        ShakeShake(depth=27, width=4)
