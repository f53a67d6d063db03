"""Our SGD and AdamW against torch's, learning rates by pattern, and what a run saves of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastswa.config import OptimiserConfig, to_dict
from fastswa.errors import RequestError
from fastswa.layers import build_config, flag_layer, to_toml
from fastswa.training.optimiser import SGD, AdamW, build_optimiser, is_kernel, rate_multipliers
from fastswa.training.state import preserved
from tiny_runs import StoppingWatcher, assert_same_run, go_on, state_at, tiny, train

SHAPES = [(4, 3), (5,), (2, 3, 3, 3), ()]


def draws(seed: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.5, True), (0.0, False)])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-4, 0.1])
def test_twenty_steps_equal_torchs(dtype: torch.dtype, momentum: float, nesterov: bool, weight_decay: float) -> None:
    ours, theirs = ([nn.Parameter(p) for p in draws(0, dtype)] for _ in range(2))
    config = OptimiserConfig(momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    optimiser = SGD(ours, config)
    oracle = torch.optim.SGD(theirs, lr=1.0, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for step in range(20):
        rate = 0.1 * (1 + step % 5) / (1 + step)
        gradients = draws(100 + step, dtype)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        oracle.param_groups[0]["lr"] = rate
        oracle.step()
        optimiser.step(gradients, torch.tensor(rate, dtype=dtype))
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)
    assert all(not torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, draws(0, dtype), strict=True))


def test_nesterovs_first_steps_have_the_values_worked_out_by_hand() -> None:
    weight = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimiser = SGD([weight], OptimiserConfig(momentum=0.9, nesterov=True, weight_decay=0.5))
    one, rate = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    optimiser.step([one], rate)
    # Gradient 1 + 0.5 = 1.5, buffer 1.5, update 1.5 + 0.9 * 1.5 = 2.85.
    assert weight.item() == pytest.approx(1 - 0.285)
    optimiser.step([one], rate)
    # Gradient 1 + 0.5 * 0.715 = 1.3575, buffer 1.35 + 1.3575 = 2.7075, update 1.3575 + 0.9 * 2.7075 = 3.79425.
    assert weight.item() == pytest.approx(0.715 - 0.379425)
    assert optimiser.momentum[0].item() == pytest.approx(2.7075)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, True)])
def test_gradients_and_addresses_stay_as_they_were(momentum: float, nesterov: bool) -> None:
    parameters = [nn.Parameter(p) for p in draws(0, torch.float64)]
    optimiser = SGD(parameters, OptimiserConfig(momentum=momentum, nesterov=nesterov, weight_decay=0.1))
    addresses = [t.data_ptr() for t in [*parameters, *optimiser.momentum]]
    gradients = draws(1, torch.float64)
    optimiser.step(gradients, torch.tensor(0.1, dtype=torch.float64))
    assert all(torch.equal(a, b) for a, b in zip(gradients, draws(1, torch.float64), strict=True))
    assert [t.data_ptr() for t in [*optimiser.parameters, *optimiser.momentum]] == addresses


def test_a_rate_of_zero_moves_only_the_momentum() -> None:
    parameters = [nn.Parameter(p) for p in draws(0, torch.float64)]
    optimiser = SGD(parameters, OptimiserConfig())
    optimiser.step(draws(1, torch.float64), torch.tensor(0.0, dtype=torch.float64))
    assert all(torch.equal(a, b) for a, b in zip(parameters, draws(0, torch.float64), strict=True))
    assert all(torch.count_nonzero(buffer) for buffer in optimiser.momentum)


class Toy(nn.Module):
    """Four parameters: body.0.weight, body.0.bias, heads.first.weight, heads.first.bias."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4, dtype=dtype))
        self.heads = nn.ModuleDict({"first": nn.Linear(4, 2, dtype=dtype)})
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(draw(number, parameter))


def draw(seed: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


RATES = {"heads.*": 10.0, "body.0.bias": 0.0}
FACTORS = {"body.0.weight": 1.0, "body.0.bias": 0.0, "heads.first.weight": 10.0, "heads.first.bias": 10.0}


def oracle_for(network: nn.Module, config: OptimiserConfig, factors: Mapping[str, float]) -> torch.optim.Optimizer:
    decay = dict.fromkeys(factors, config.weight_decay)
    if config.decay_all is False:
        decay |= {name: 0.0 for name in factors if name.endswith("bias")}
    groups = [
        {"params": [p], "factor": factors[name], "weight_decay": decay[name]} for name, p in network.named_parameters()
    ]
    if config.name == "adamw":
        betas = (config.momentum, config.beta2)
        return torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=config.epsilon)
    return torch.optim.SGD(groups, lr=1.0, momentum=config.momentum, nesterov=config.nesterov)


@pytest.mark.parametrize("rates", [{}, RATES])
@pytest.mark.parametrize(
    "settings",
    [
        {"name": "adamw"},
        {"name": "adamw", "momentum": 0.5, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.3},
        {"name": "adamw", "momentum": 0.0, "weight_decay": 0.0},
        {"name": "sgd", "weight_decay": 0.1},
        {"name": "sgd", "weight_decay": 0.1, "decay_all": False},
        {"name": "adamw", "weight_decay": 0.3, "decay_all": False},
        {"name": "sgd", "momentum": 0.0, "nesterov": False},
    ],
)
def test_steps_with_rates_by_pattern_equal_torchs_parameter_groups(
    settings: dict[str, Any], rates: dict[str, float]
) -> None:
    config = OptimiserConfig(**settings, rates=rates)
    ours, theirs = Toy(), Toy()
    optimiser = build_optimiser(ours, config)
    oracle = oracle_for(theirs, config, FACTORS if rates else dict.fromkeys(FACTORS, 1.0))
    for step in range(20):
        rate = 0.01 * (1 + step % 5) / (1 + step)
        gradients = [draw(100 * step + number, p) for number, p in enumerate(theirs.parameters())]
        for parameter, gradient in zip(theirs.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        for group in oracle.param_groups:
            group["lr"] = rate * group["factor"]
        oracle.step()
        optimiser.step(gradients, torch.tensor(rate, dtype=torch.float64))
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-13)
    still = torch.equal(ours.body[0].bias, Toy().body[0].bias)
    assert still == bool(rates)


def test_kernels_are_told_from_biases_and_gains() -> None:
    kernels = {"conv": (8, 3, 3, 3), "pointwise": (8, 3, 1, 1), "linear": (10, 8), "onto one": (1, 8)}
    others = {"bias": (8,), "weight norm's gain": (8, 1, 1, 1), "scalar": ()}
    assert all(is_kernel(torch.zeros(shape)) for shape in kernels.values())
    assert not any(is_kernel(torch.zeros(shape)) for shape in others.values())


def test_where_weight_decay_is_stays_out_of_runs_that_do_not_say() -> None:
    """Runs from before there was a choice are resumed, and found in results, by all of their settings."""
    assert "decay_all" not in to_dict(build_config({}))["optimiser"]
    assert not to_dict(build_config(flag_layer(["--optimiser.decay_all", "false"])))["optimiser"]["decay_all"]


def test_adamws_first_step_moves_by_the_rate_whatever_the_gradient() -> None:
    weight = nn.Parameter(torch.tensor([2.0, -3.0], dtype=torch.float64))
    optimiser = AdamW([weight], OptimiserConfig(name="adamw", weight_decay=0.5))
    optimiser.step([torch.tensor([1e-4, 7.0], dtype=torch.float64)], torch.tensor(0.1, dtype=torch.float64))
    # Decay by 0.1 * 0.5 first; then mean / root of the square is 1 up to epsilon once both are corrected.
    assert weight.tolist() == pytest.approx([2 * 0.95 - 0.1, -3 * 0.95 - 0.1], abs=2e-5)
    assert optimiser.count.item() == 1


def test_adamw_in_32_bits_stays_with_64() -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        network = Toy(dtype)
        optimiser = build_optimiser(network, OptimiserConfig(name="adamw"))
        for step in range(50):
            gradients = [draw(100 * step + number, p) for number, p in enumerate(network.parameters())]
            optimiser.step(gradients, torch.tensor(0.01, dtype=dtype))
        results.append(torch.cat([p.detach().double().flatten() for p in network.parameters()]))
    assert torch.allclose(*results, rtol=1e-5, atol=1e-5)


def test_the_last_pattern_that_matches_counts() -> None:
    names = ["heads.first.weight", "heads.first.bias", "stem.weight"]
    assert rate_multipliers(names, {"*": 0.1, "heads.*": 10, "*.bias": 3}) == [10, 3, 0.1]


@pytest.mark.parametrize(
    ("pattern", "hint"), [("head.*", "did you mean heads.*?"), ("body.0.wieght", "did you mean body.0.weight?")]
)
def test_a_pattern_that_matches_nothing_is_refused(pattern: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        build_optimiser(Toy(), OptimiserConfig(rates={"heads.*": 2.0, pattern: 1.0}))
    assert str(caught.value) == f"optimiser.rates: no parameter is named '{pattern}'; {hint}"


def test_adamw_brings_its_own_rate_and_leaves_sgds_behind() -> None:
    recipe = {"optimiser": {"name": "sgd", "lr": 0.4, "momentum": 0.5}}
    config = build_config(recipe, flag_layer(["--optimiser", "adamw", "--optimiser.rates", "heads.*=10,*.bias=0"]))
    chosen = config.optimiser
    assert (chosen.name, chosen.lr, chosen.momentum, chosen.weight_decay) == ("adamw", 1e-3, 0.9, 1e-2)
    assert chosen.rates == {"heads.*": 10.0, "*.bias": 0.0}
    assert build_config(recipe, {"optimiser": {"name": "adamw", "lr": 0.01}}).optimiser.lr == 0.01
    assert build_config(recipe, {"optimiser": {"name": "sgd"}}).optimiser.lr == 0.4
    assert build_config(tomllib.loads(to_toml(config))) == config


def test_rates_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(RequestError, match=r"--optimiser.rates: 'heads' is not NAME=NUMBER\."):
        flag_layer(["--optimiser.rates", "heads"])
    with pytest.raises(RequestError, match=r"optimiser.rates.heads.\*: 'fast' is not a number\."):
        build_config(flag_layer(["--optimiser.rates=heads.*=fast"]))


@pytest.mark.parametrize("stop", [5, 9])
def test_adamw_resumes_exactly(tmp_path: Path, stop: int) -> None:
    config = tiny({"optimiser": {"name": "adamw", "rates": {"heads.*": 5}}})
    train(config, tmp_path / "whole")
    train(config, tmp_path / "stopped", StoppingWatcher(stop=stop))
    assert state_at(tmp_path / "stopped", stop)["adam_count"] == stop
    go_on(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_adamw_is_the_same_compiled() -> None:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if not pick_vec_isa():
        pytest.skip("no vector instructions")
    networks = [Toy(), Toy()]
    eager, compiled = (build_optimiser(n, OptimiserConfig(name="adamw", rates=RATES)) for n in networks)
    launch = torch.compile(compiled.step)
    for step in range(3):
        gradients = [draw(100 * step + number, p) for number, p in enumerate(networks[0].parameters())]
        eager.step(gradients, torch.tensor(0.01, dtype=torch.float64))
        launch(gradients, torch.tensor(0.01, dtype=torch.float64))
    for a, b in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.gpu
def test_adamw_is_the_same_captured() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    networks = [Toy().cuda(), Toy().cuda()]
    eager, captured = (build_optimiser(n, OptimiserConfig(name="adamw", rates=RATES)) for n in networks)
    gradients, rate = [torch.ones_like(p) for p in networks[1].parameters()], torch.tensor(0.0).double().cuda()
    with preserved([*captured.parameters, *captured.mean, *captured.square, captured.count]):
        graph = torch.cuda.CUDAGraph()
        captured.step(gradients, rate)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured.step(gradients, rate)
    for step in range(5):
        drawn = [draw(100 * step + number, p).cuda() for number, p in enumerate(networks[0].parameters())]
        rate.fill_(0.01 / (1 + step))
        eager.step(drawn, rate)
        for buffer, gradient in zip(gradients, drawn, strict=True):
            buffer.copy_(gradient)
        graph.replay()
    for a, b in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-13)
    assert captured.count.item() == 5
