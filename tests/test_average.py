"""`fastswa average`: checkpoints of every kind, the mean itself, fresh statistics, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import fastswa
from conftest import Command
from fastswa.average import Mean
from fastswa.errors import RequestError
from fastswa.modelfile import read_facts
from fastswa.weights import Weights, read_weights
from tiny_runs import STEPS, StoppingWatcher, checkpoint, models, tiny, train


class Net(nn.Module):
    """Someone else's network."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))
        return logits


def nets(count: int = 3) -> list[Net]:
    """Networks whose weights and statistics differ."""
    torch.manual_seed(0)
    made = [Net() for _ in range(count)]
    for net in made:
        net(torch.randn(8, 3, 8, 8) + 1)
    return made


def weights(*made: nn.Module) -> list[Weights]:
    return [Weights(f"net{number}", dict(net.state_dict())) for number, net in enumerate(made)]


def test_the_mean_is_torchs_and_statistics_are_the_last_ones() -> None:
    made = nets()
    oracle = AveragedModel(made[0])
    for net in made:
        oracle.update_parameters(net)
    mean = Mean()
    for each in weights(*made):
        mean.add(each)
    found = mean.tensors()
    for name, parameter in oracle.module.named_parameters():
        assert torch.allclose(found[name], parameter, atol=1e-7)
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert torch.equal(found[name], made[-1].state_dict()[name])


def test_half_precision_is_summed_in_64_bits_and_stays_half() -> None:
    mean = Mean()
    values = [1.0, 2.0**-9, 2.0**-9, 2.0**-9]
    for number, value in enumerate(values):
        mean.add(Weights(str(number), {"w": torch.tensor([value], dtype=torch.float16)}))
    assert mean.tensors()["w"].dtype == torch.float16
    assert mean.tensors()["w"].item() == torch.tensor(np.mean(values)).half().item()


def test_weights_of_two_precisions_come_out_in_the_wider() -> None:
    mean = Mean()
    for dtype in (torch.float32, torch.float16):
        mean.add(Weights(str(dtype), {"w": torch.tensor([1 / 3], dtype=dtype)}))
    half = torch.tensor([1 / 3], dtype=torch.float16).double()
    assert mean.tensors()["w"].dtype == torch.float32
    assert mean.tensors()["w"].item() == pytest.approx((1 / 3 + half.item()) / 2, abs=1e-7)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_8_bits_are_averaged_too(kind: torch.dtype) -> None:
    mean = Mean()
    for number, value in enumerate([1.0, 1.5, 3.5]):
        mean.add(Weights(str(number), {"w": torch.tensor([value]).to(kind)}))
    assert mean.tensors()["w"].dtype == kind
    assert mean.tensors()["w"].float().item() == 2.0
    mean.add(Weights("3", {"w": torch.tensor([2.5], dtype=torch.float16)}))
    assert mean.tensors()["w"].dtype == torch.float16
    assert mean.tensors()["w"].item() == torch.tensor(8.5 / 4).half().item()
    with pytest.raises(RequestError, match=r"^4: w is not finite; leave this checkpoint out\.$"):
        mean.add(Weights("4", {"w": torch.tensor([float("nan")]).to(kind)}))


def test_two_kinds_of_8_bits_come_out_in_32() -> None:
    mean = Mean()
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        mean.add(Weights(str(kind), {"w": torch.tensor([1.25]).to(kind)}))
    assert mean.tensors()["w"].dtype == torch.float32
    assert mean.tensors()["w"].item() == 1.25


def test_complex_weights_are_averaged() -> None:
    mean = Mean()
    for name, value in (("a", 1 + 2j), ("b", 4j)):
        mean.add(Weights(name, {"w": torch.tensor([value])}))
    assert mean.tensors()["w"].dtype == torch.complex64
    assert mean.tensors()["w"].tolist() == [0.5 + 3j]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("conv.weight"), "conv.weight is (4, 3, 3, 3) in net0 and not in net1."),
        (lambda t: t.update(more=torch.zeros(2)), "more is not in net0 and (2,) in net1."),
        (lambda t: t.update({"fc.bias": torch.zeros(5)}), "fc.bias is (3,) in net0 and (5,) in net1."),
    ],
)
def test_another_architecture_is_refused_with_the_first_difference(
    change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    one, other = weights(*nets(2))
    change(other.tensors)
    mean = Mean()
    mean.add(one)
    with pytest.raises(RequestError) as refusal:
        mean.add(other)
    assert str(refusal.value) == f"net0 and net1 are not of one architecture: {message}"


def test_weights_that_are_not_finite_are_refused() -> None:
    (bad,) = weights(*nets(1))
    bad.tensors["fc.bias"] = torch.tensor([0.0, float("nan"), 0.0])
    with pytest.raises(RequestError, match=r"^net0: fc.bias is not finite; leave this checkpoint out\.$"):
        Mean().add(bad)


def wrapped(net: Net, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in net.state_dict().items()}


FORMS: dict[str, Callable[[Net, Path], object]] = {
    "plain.safetensors": lambda net, path: save_file(dict(net.state_dict()), path),
    "plain.pt": lambda net, path: torch.save(net.state_dict(), path),
    "lightning.ckpt": lambda net, path: torch.save(
        {"epoch": 3, "state_dict": net.state_dict(), "hyper_parameters": {"lr": 0.1}}, path
    ),
    "tutorial.pth": lambda net, path: torch.save({"model_state_dict": net.state_dict(), "loss": 0.5}, path),
    "parallel.pt": lambda net, path: torch.save(wrapped(net, "module."), path),
    "compiled.pt": lambda net, path: torch.save({"model": wrapped(net, "_orig_mod.")}, path),
    "old.pt": lambda net, path: torch.save(net.state_dict(), path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_file_gives_the_same_tensors(form: str, tmp_path: Path) -> None:
    (net,) = nets(1)
    FORMS[form](net, tmp_path / form)
    read = read_weights(str(tmp_path / form), None, pytest.fail)
    assert read.facts is None
    assert read.tensors.keys() == net.state_dict().keys()
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in read.tensors.items())


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return os.mkdir, (self.path,)


def test_no_file_runs_code(tmp_path: Path, command: Command) -> None:
    trap = tmp_path / "trap"
    torch.save({"state_dict": nets(1)[0].state_dict(), "callback": Trap(trap)}, tmp_path / "evil.ckpt")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Trap(trap)))
    for name in ("evil.ckpt", "evil.pkl"):
        answer = command("average", tmp_path / name, "other", "--out", tmp_path / "out.safetensors")
        assert answer.code == 2
        assert "cannot be read without running code from it" in answer.err
    assert not trap.exists()


def kept(run: Path, epoch: int, network: str) -> dict[str, Tensor]:
    """A network's tensors in the checkpoint of an epoch."""
    content = load_file(checkpoint(run, epoch * STEPS) / "tensors.safetensors")
    return {name.removeprefix(f"{network}."): t for name, t in content.items() if name.startswith(f"{network}.")}


def test_epochs_of_a_run_are_averaged_and_refreshed_on_it(finished: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "mean.safetensors"
    answer = command("average", f"{finished}@1", f"{finished}@2", "--out", out, "--json")
    assert answer.code == 0
    result = json.loads(answer.out)
    assert (result["out"], result["refreshed"]) == (str(out), True)
    assert list(result["figures"]["test"]) == [
        f"{finished}@1",
        f"{finished}@2",
        "average, statistics of the last",
        "average",
    ]
    found = load_file(out)
    students = [kept(finished, epoch, "student") for epoch in (1, 2)]
    for name, tensor in found.items():
        if name.rpartition(".")[2] not in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.allclose(tensor, (students[0][name] + students[1][name]) / 2, atol=1e-7)
        elif name.endswith("running_mean"):
            assert not torch.equal(tensor, students[1][name])
    facts = read_facts(out)
    assert (facts.network, facts.architecture, facts.temperature) == ("average", "small", 1.0)
    images = fastswa.load(finished)
    assert fastswa.load(out).classes == images.classes


def test_the_statistics_are_those_of_the_runs_own_refresh(finished: Path, tmp_path: Path, command: Command) -> None:
    """Averaging a network with itself leaves its weights, and refreshing them must come near what training found."""
    copy = tmp_path / "copy.safetensors"
    original = finished / "models" / "fast_swa.safetensors"
    copy.write_bytes(original.read_bytes())
    out = tmp_path / "out.safetensors"
    assert command("average", original, copy, "--data", finished, "--out", out).code == 0
    before, after = load_file(original), load_file(out)
    for name, tensor in before.items():
        if name.endswith("running_var"):
            assert torch.allclose(after[name], tensor, rtol=0.5)
        elif not name.endswith(("running_mean", "num_batches_tracked")):
            assert torch.allclose(after[name], tensor, atol=1e-6)


def test_a_table_shows_each_checkpoint_and_the_average(finished: Path, tmp_path: Path, command: Command) -> None:
    files = [finished / "models" / f"{name}.safetensors" for name in ("student", "teacher")]
    answer = command("average", *files, "--data", "digits", "--out", tmp_path / "new" / "a.safetensors")
    assert answer.code == 0
    assert "test error" in answer.out
    assert "average, statistics of the last" in answer.out
    assert answer.out.splitlines()[-1].endswith("Its batch-norm statistics were refreshed on training batches.")


def test_other_networks_of_a_run(finished: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "a.safetensors"
    answer = command("average", f"{finished}@1", f"{finished}@2", "--network", "teacher", "--no-refresh", "--out", out)
    assert answer.code == 0
    assert f"are those of {finished}@2, which belong to other weights" in answer.out
    name = "heads.first.weight"
    mean = (kept(finished, 1, "teacher")[name] + kept(finished, 2, "teacher")[name]) / 2
    assert torch.allclose(load_file(out)[name], mean, atol=1e-7)
    folders = command("average", finished, f"{finished}@2", "--network", "swa", "--out", tmp_path / "b.safetensors")
    assert folders.code == 0, folders.err


def test_a_run_that_has_no_model_yet(tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    train(tiny({"checkpoint": {"keep": [1, 2]}}), run, StoppingWatcher(stop=7))
    answer = command("average", f"{run}@1", f"{run}@2", "--out", tmp_path / "a.safetensors")
    assert answer.code == 0, answer.err
    assert fastswa.load(tmp_path / "a.safetensors").classes == tuple("0123456789")


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """Forty 32x32 colour images of three classes."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "colours.npz", x_train=x, y_train=np.arange(40) % 3, x_test=x[:12], y_test=np.arange(12) % 3)
    return tmp_path / "colours.npz"


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, which needs torchvision."""
    stand_in: Any = ModuleType("timm")
    stand_in.__version__ = "1.0.30"

    def create_model(name: str, *, pretrained: bool, in_chans: int, num_classes: int) -> nn.Module:
        net = Net(num_classes or 1)
        net.num_features = 4  # type: ignore[assignment]
        if num_classes == 0:
            net.fc = nn.Identity()  # type: ignore[assignment]
        return net

    stand_in.create_model = create_model
    stand_in.is_model = {"net"}.__contains__
    stand_in.list_models = lambda: ["net"]
    stand_in.models = SimpleNamespace(get_pretrained_cfg=lambda name: None)
    monkeypatch.setitem(sys.modules, "timm", stand_in)


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("prefix", ["", "model.", "net.inner."])
def test_foreign_checkpoints_keep_their_names(prefix: str, colours: Path, tmp_path: Path, command: Command) -> None:
    made = nets()
    files = []
    for number, net in enumerate(made):
        files.append(tmp_path / f"{number}.ckpt")
        torch.save({"state_dict": {**wrapped(net, prefix), **({"loss.w": torch.ones(3)} if prefix else {})}}, files[-1])
    out = tmp_path / "mean.safetensors"
    answer = command("average", *files, "--model", "timm:net", "--data", colours, "--out", out, "--json")
    assert answer.code == 0, answer.err
    assert list(json.loads(answer.out)["figures"]) == ["test"]
    found = load_file(out)
    assert found.keys() == torch.load(files[0])["state_dict"].keys()
    mean = torch.stack([net.fc.weight for net in made]).mean(dim=0)
    assert torch.allclose(found[f"{prefix}fc.weight"], mean, atol=1e-7)
    assert not torch.equal(found[f"{prefix}norm.running_mean"], made[-1].norm.running_mean)


@pytest.mark.usefixtures("timm")
def test_statistics_of_a_foreign_network_are_the_batches_own(colours: Path, tmp_path: Path, command: Command) -> None:
    """Noise images are alike, so any batch's statistics are near those of all images, computed here by hand."""
    made = nets(2)
    for number, net in enumerate(made):
        torch.save(net.state_dict(), tmp_path / f"{number}.pt")
    out = tmp_path / "mean.safetensors"
    words = ("--model", "timm:net", "--data", colours, "--out", out)
    assert command("average", tmp_path / "0.pt", tmp_path / "1.pt", *words).code == 0
    found = load_file(out)
    x = torch.from_numpy(np.load(colours)["x_train"]).permute(0, 3, 1, 2) / 255
    mean, std = x.mean(dim=(0, 2, 3), keepdim=True), x.std(dim=(0, 2, 3), keepdim=True)
    activations = nn.functional.conv2d((x - mean) / std, found["conv.weight"])
    assert torch.allclose(found["norm.running_var"], activations.var(dim=(0, 2, 3)), rtol=0.05)
    assert torch.allclose(found["norm.running_mean"], activations.mean(dim=(0, 2, 3)), atol=0.02)


@pytest.mark.usefixtures("timm")
def test_a_model_of_ours_by_name_becomes_a_model_file(colours: Path, tmp_path: Path, command: Command) -> None:
    from fastswa.models import build

    for number in range(2):
        torch.save(build("small", channels=3, classes=3, heads=2, size=32).state_dict(), tmp_path / f"{number}.pt")
    out = tmp_path / "mean.safetensors"
    words = (tmp_path / "0.pt", tmp_path / "1.pt", "--model", "small", "--data", colours, "--out", out)
    assert command("average", *words).code == 0
    assert fastswa.load(out).predict(np.zeros((2, 32, 32, 3), np.uint8)).probabilities.shape == (2, 3)


def test_without_batch_norm_nothing_is_refreshed(tmp_path: Path, command: Command) -> None:
    for number in range(2):
        save_file({"w": torch.full((2,), float(number))}, tmp_path / f"{number}.safetensors")
    files = [tmp_path / f"{number}.safetensors" for number in range(2)]
    answer = command("average", *files, "--out", tmp_path / "out.safetensors")
    assert answer.code == 0
    assert answer.out.endswith("There is no batch norm in it, so nothing was to be refreshed.\n")
    assert load_file(tmp_path / "out.safetensors")["w"].tolist() == [0.5, 0.5]


def test_images_of_other_classes_refresh_but_do_not_measure(finished: Path, tmp_path: Path, command: Command) -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "grey.npz", x_train=x, y_train=np.arange(40) % 2)
    files = [finished / "models" / f"{name}.safetensors" for name in ("student", "teacher")]
    out = tmp_path / "out.safetensors"
    answer = command("average", *files, "--data", tmp_path / "grey.npz", "--out", out)
    assert answer.code == 0, answer.err
    assert "Nothing was measured" in answer.out
    name = "block1.0.norm.running_mean"
    assert not torch.equal(load_file(out)[name], models(finished)[f"teacher.safetensors/{name}"])


def test_damaged_statistics_do_not_matter_where_they_are_refreshed(
    finished: Path, tmp_path: Path, command: Command
) -> None:
    tensors = models(finished)
    damaged = {
        name.removeprefix("teacher.safetensors/"): t for name, t in tensors.items() if name.startswith("teacher.")
    }
    damaged["block1.0.norm.running_mean"] = torch.full_like(damaged["block1.0.norm.running_mean"], float("nan"))
    save_file(damaged, tmp_path / "damaged.safetensors")
    words = [finished / "models" / "student.safetensors", tmp_path / "damaged.safetensors"]
    out = tmp_path / "out.safetensors"
    answer = command("average", *words, "--no-refresh", "--out", out)
    assert answer.code == 2
    assert "damaged.safetensors: block1.0.norm.running_mean is not finite; leave this checkpoint out." in answer.err
    assert command("average", *reversed(words), "--no-refresh", "--out", out).code == 0  # the last one's are kept
    out.unlink()
    assert command("average", *words, "--data", finished, "--out", out).code == 0
    assert bool(load_file(out)["block1.0.norm.running_mean"].isfinite().all())


def test_labelled_images_are_measured_on_where_there_is_no_test_set(
    finished: Path, tmp_path: Path, command: Command
) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "grey.npz", x_train=x, y_train=np.arange(60) % 10)
    files = [finished / "models" / f"{name}.safetensors" for name in ("student", "teacher")]
    words = ("--data", tmp_path / "grey.npz", "--out", tmp_path / "out.safetensors", "--json")
    answer = command("average", *files, *words)
    assert list(json.loads(answer.out)["figures"]) == ["labelled"]


def test_images_of_another_size_and_colour_are_brought_to_the_models(
    finished: Path, colours: Path, tmp_path: Path, command: Command
) -> None:
    words = ("--data", colours, "--out", tmp_path / "out.safetensors")
    answer = command("average", f"{finished}@1", f"{finished}@2", *words)
    assert answer.code == 0, answer.err
    assert "are not the model's classes" in answer.out
    assert fastswa.load(tmp_path / "out.safetensors").classes == tuple("0123456789")


def test_what_cannot_be_averaged_is_one_sentence(
    finished: Path, colours: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (f"{finished}@{epoch}" for epoch in (1, 2))
    for number, net in enumerate(nets(2)):
        torch.save(net.state_dict(), f"{number}.pt")
    torch.save([1, 2], "list.pt")
    torch.save({"state_dict": {"a": 1}}, "none.pt")
    Path("text.pt").write_text("hello")
    Path("flipped.pt").write_bytes(b"\x80\x02e.")
    Path("cut.safetensors").write_bytes((finished / "model.safetensors").read_bytes()[:-9])
    Path("cut.pt").write_bytes(Path("0.pt").read_bytes()[:300])
    Path("there.safetensors").touch()
    Path("sharded").mkdir()
    for name in ("model.safetensors.index.json", "sharded/model-00001-of-00002.safetensors"):
        Path(name).write_text("{}")
    torch.save({**torch.load("1.pt"), "norm.running_var": torch.full((4,), float("nan"))}, "nan.pt")
    cases = {
        (one,): "name at least two checkpoints to average.",
        (one, one): f"{one} is named twice.",
        ("0.pt", "./0.pt", "--no-refresh"): "./0.pt is named twice, first as 0.pt.",
        (
            str(finished),
            f"{finished}/model.safetensors",
        ): f"{finished}/model.safetensors is named twice, first as {finished}",
        (
            f"{finished}/models/swa.safetensors",
            str(finished),
            "--network",
            "swa",
        ): f"{finished} is named twice, first as",
        (one, two, "--out", "mean.pt"): "--out: mean.pt must end in .safetensors.",
        (one, two, "--out", "mean"): "--out: mean must end in .safetensors.",
        (
            "model.safetensors.index.json",
            one,
        ): "model.safetensors.index.json is one checkpoint in several files, which are",
        (
            "sharded",
            one,
        ): "sharded is one checkpoint in several files, which are not read; join them into one file first.",
        ("0.pt", "nan.pt", "--no-refresh"): "nan.pt: norm.running_var is not finite; leave this checkpoint out.",
        (one, "nothing"): "there is no checkpoint nothing.",
        (one, f"{finished}@9"): "keeps no checkpoint of epoch 9",
        (one, two, "--network", "ema2"): "has no network 'ema2'; there are: ema, fast_swa, student, swa, teacher.",
        (one, two, "--out", "there.safetensors"): "there.safetensors is there already; choose another --out.",
        (one, two, "--out", "0.pt/a.safetensors"): "cannot write into 0.pt: 0.pt is no folder.",
        (one, two, "--data", "nowhere"): "--data: there is no run, data set, recipe, folder or file nowhere.",
        (one, "0.pt"): "are not of one architecture",
        ("0.pt", "list.pt"): "list.pt holds no weights",
        ("0.pt", "none.pt"): "none.pt holds no weights",
        ("text.pt", "0.pt"): "text.pt is damaged or is no checkpoint of torch.",
        ("flipped.pt", "0.pt"): "flipped.pt is damaged or is no checkpoint of torch.",
        ("cut.safetensors", one): "cut.safetensors is not a whole safetensors file.",
        ("cut.pt", one): "cut.pt",
        ("0.pt", "1.pt"): "name the network with --model (such as timm:resnet18) and images with --data, or keep those "
        "of 1.pt with --no-refresh.",
        ("0.pt", "1.pt", "--model", "small"): "name images with --data",
        ("0.pt", "1.pt", "--model", "small", "--data", str(colours)): "the checkpoints are not of small",
        ("0.pt", "1.pt", "--model", "smal", "--data", str(colours)): "unknown model 'smal'",
        ("0.pt", "1.pt", "--mode", "small"): "unknown option --mode for average; did you mean --model?",
    }
    for words, message in cases.items():
        answer = command("average", *words)
        assert answer.code == 2, words
        assert message in answer.err, words
        assert answer.err.count("\n") == 1, words
    assert not Path("average.safetensors").exists()
