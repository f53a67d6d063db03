"""Networks by name: sizes, cost, options, names of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fastswa.averaging import unwrap
from fastswa.errors import RequestError
from fastswa.models import MODELS, build

COSTS = {"cnn13": 1.46e9, "shake-shake-26-2x96d": 7.55e9}
SIZES = {
    ("cnn13", 10): 3_127_208,
    ("cnn13", 100): 3_150_608,
    ("shake-shake-26-2x96d", 10): 26_197_316,
    ("shake-shake-26-2x96d", 100): 26_266_616,
}


def without_memory(name: str, classes: int, heads: int) -> nn.Module:
    with torch.device("meta"):
        return build(name, channels=3, classes=classes, heads=heads)


@pytest.mark.parametrize(("name", "classes"), SIZES)
def test_published_parameter_counts_with_two_heads(name: str, classes: int) -> None:
    network = without_memory(name, classes, 2)
    assert sum(p.numel() for p in network.parameters()) == SIZES[name, classes]
    assert all(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize(("name", "features", "gains"), [("cnn13", 128, 1), ("shake-shake-26-2x96d", 384, 0)])
def test_a_head_costs_its_weights_bias_and_gain(name: str, features: int, gains: int) -> None:
    one, two = (sum(p.numel() for p in without_memory(name, 10, heads).parameters()) for heads in (1, 2))
    assert two - one == 10 * (features + 1 + gains)


@pytest.mark.parametrize("name", COSTS)
def test_published_cost_of_a_forward_pass(name: str) -> None:
    network = without_memory(name, 10, 2).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.empty(1, 3, 32, 32, device="meta"))
    assert round(counter.get_total_flops() / 1e9, 2) == COSTS[name] / 1e9


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("name", "channels", "size", "features"),
    [("cnn13", 3, (32, 32), 128), ("cnn13", 1, (12, 15), 128), ("small", 1, (8, 8), 64), ("small", 3, (4, 5), 64)],
)
def test_output_shapes(name: str, channels: int, size: tuple[int, int], features: int, heads: int) -> None:
    network = build(name, channels=channels, classes=7, heads=heads)
    output = network(torch.zeros(2, channels, *size))
    assert output.logits.shape == output.consistency.shape == (2, 7)
    assert output.features.shape == (2, features)
    assert (output.consistency is output.logits) == (heads == 1)


def test_output_shapes_of_shake_shake() -> None:
    output = without_memory("shake-shake-26-2x96d", 100, 2)(torch.empty(2, 3, 32, 32, device="meta"))
    assert output.logits.shape == output.consistency.shape == (2, 100)
    assert output.features.shape == (2, 384)


@pytest.mark.parametrize("name", ["cnn13", "small"])
def test_two_heads_have_weights_of_their_own_on_the_same_features(name: str) -> None:
    torch.manual_seed(0)
    network = build(name, channels=1, classes=3, heads=2).eval()
    with torch.no_grad():
        logits, consistency, features = network(torch.randn(2, 1, 16, 16))
        for head, expected in ((network.heads.first, logits), (network.heads.second, consistency)):
            assert torch.allclose(features @ head.weight.T + head.bias, expected, atol=1e-6)
    assert not torch.allclose(logits, consistency, atol=1e-3)


def test_options_reach_the_network() -> None:
    assert build("cnn13", channels=3, classes=10, dropout=0.25).drop2.p == 0.25
    assert build("small", channels=1, classes=10, width=5).heads.first.weight.shape == (10, 10)


def test_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match=r"^unknown model 'cnn3'; did you mean cnn13\?$"):
        build("cnn3", channels=3, classes=10)


@pytest.mark.parametrize(
    ("name", "option"), [("cnn13", "width"), ("shake-shake-26-2x96d", "width"), ("shake-shake-26-2x96d", "dropout")]
)
def test_option_without_effect_is_refused(name: str, option: str) -> None:
    with pytest.raises(RequestError, match=rf"^model\.{option} has no effect on the model {name}; leave it out\.$"):
        build(name, channels=3, classes=10, **{option: 1})


def test_three_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="one or two heads, not 3"):
        build("small", channels=1, classes=10, heads=3)


@pytest.mark.parametrize("name", MODELS)
def test_compiled_networks_weights_load_into_a_plain_one(name: str) -> None:
    wrapped = torch.compile(without_memory(name, 10, 2), backend="eager")
    plain = without_memory(name, 10, 2)
    assert any(key.startswith("_orig_mod.") for key in wrapped.state_dict())
    assert unwrap(wrapped).state_dict().keys() == plain.state_dict().keys()
    assert not any(key.startswith(("_orig_mod", "module.")) for key in plain.state_dict())


def test_names_of_the_weights_stay_as_files_have_them() -> None:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    weight = ("bias", "parametrizations.weight.original0", "parametrizations.weight.original1")
    cnn = {
        *(f"block{b}.{i}.conv.{w}" for b in (1, 2, 3) for i in range(3) for w in weight),
        *(f"block{b}.{i}.norm.{n}" for b in (1, 2, 3) for i in range(3) for n in norm),
        *(f"heads.{head}.{w}" for head in ("first", "second") for w in weight),
    }
    assert without_memory("cnn13", 10, 2).state_dict().keys() == cnn

    shake = {"stem.weight", *(f"heads.{head}.{w}" for head in ("first", "second") for w in ("weight", "bias"))}
    for block in range(12):
        for branch in ("branch1", "branch2"):
            shake |= {f"blocks.{block}.{branch}.conv{i}.weight" for i in (1, 2)}
            shake |= {f"blocks.{block}.{branch}.norm{i}.{n}" for i in (1, 2) for n in norm}
    for block in (0, 4, 8):
        shake |= {f"blocks.{block}.skip.conv.weight", *(f"blocks.{block}.skip.norm.{n}" for n in norm)}
    shake |= {f"blocks.{block}.skip.conv.bias" for block in (4, 8)}
    assert without_memory("shake-shake-26-2x96d", 10, 2).state_dict().keys() == shake
