"""What a run on one's own images does where nothing is said: chosen from the data, told, and written down."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Command
from fastswa.api import fit
from fastswa.config import Config, DataConfig, ScheduleConfig
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.data.splits import split_by
from fastswa.defaults import described, own_data_defaults
from fastswa.errors import RequestError
from fastswa.layers import build_config, own_data_layer, to_toml
from fastswa.models import refuse_size
from fastswa.training import setup
from fastswa.training.device import choose_compute
from fastswa.training.folder import RunFolder
from fastswa.training.setup import prepare
from fastswa.training.state import build_state


def data(
    labels: list[int], unlabelled: int = 500, shape: tuple[int, int, int] = (1, 8, 8), test: int = 0, classes: int = 0
) -> Dataset:
    """Random images with these labels, then `unlabelled` ones."""
    rng = np.random.default_rng(0)
    names = tuple(str(k) for k in range(classes or max(labels) + 1))
    known = np.array(labels + [UNLABELLED] * unlabelled)
    pixels = rng.integers(0, 256, (len(known), *shape), dtype=np.uint8)
    tests = ImageSet(rng.integers(0, 256, (test, *shape), dtype=np.uint8), np.arange(test) % len(names), names)
    return Dataset(ImageSet(pixels, known, names), tests if test else None)


def chosen(dataset: Dataset, *given: dict[str, Any], gpu: bool = False, bf16: bool = False) -> Config:
    return own_data_defaults(build_config(own_data_layer("mine"), *given), dataset, gpu=gpu, bf16=bf16)


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "batch"),
    [
        (20, 100, (100, 20, 25)),  # no more labelled places than labels; epochs of some steps all the same
        (100, 5000, (100, 50, 100)),  # half a batch, and a pass over the rest
        (100, 500_000, (100, 50, 500)),  # another part of them each epoch
        (300, 100, (100, 75, 25)),  # most have labels
        (400, 600, (100, 50, 25)),
        (250, 0, (100, 75, 25)),
    ],
)
def test_batches_follow_the_number_of_labels(labelled: int, unlabelled: int, batch: tuple[int, int, int]) -> None:
    labels = [k % 2 for k in range(labelled)]
    dataset = data(labels, 0)
    pixels = np.broadcast_to(dataset.train.pixels[:1], (labelled + unlabelled, 1, 8, 8))
    known = np.array(labels + [UNLABELLED] * unlabelled)
    config = chosen(Dataset(ImageSet(pixels, known, ("0", "1")), None), {"split": {"validation": 0}})
    assert (config.batch.size, config.batch.labelled, config.batch.steps) == batch
    assert not config.batch.balanced


@pytest.mark.parametrize(
    ("shape", "gpu", "model", "translate", "flip", "evaluated"),
    [
        ((1, 8, 8), False, ("small", None), 1, False, 1000),
        ((1, 8, 8), True, ("small", None), 1, False, 1000),
        ((1, 28, 28), False, ("small", None), 4, False, 1000),
        ((1, 28, 28), True, ("cnn13", None), 4, False, 1000),
        ((3, 32, 40), True, ("cnn13", None), 4, True, 1000),
        ((3, 64, 64), False, ("small", None), 8, True, 250),
        ((3, 96, 96), True, ("small", 64), 12, True, 111),
        ((3, 224, 224), False, ("small", None), 28, True, 20),
    ],
)
def test_networks_and_views_follow_the_images(
    shape: tuple[int, int, int],
    gpu: bool,
    model: tuple[str, int | None],
    translate: int,
    flip: bool,
    evaluated: int,
) -> None:
    config = chosen(data([0, 1] * 5, 4, shape), gpu=gpu)
    assert (config.model.name, config.model.width) == model
    assert (config.augment.translate, config.augment.flip) == (translate, flip)
    assert config.evaluation.batch == evaluated
    refuse_size(config.model.name, shape)


@pytest.mark.parametrize("classes", [2, 5, 10, 100, 1000])
def test_the_weight_follows_the_classes(classes: int) -> None:
    config = chosen(data(list(range(classes)) * 2, 10), {"method": {"name": "mean-teacher"}})
    # The squared difference is a mean over the classes; 30 for ten of them.
    expected = {2: 13, 5: 21, 10: 30, 100: 95, 1000: 300}
    assert config.method.weight == expected[classes]
    assert chosen(data(list(range(classes)) * 2, 10), {"method": {"divergence": "kl"}}).method.weight == 3


def test_vats_perturbation_follows_the_size_of_the_images() -> None:
    method = chosen(data([0, 1] * 5, 4, (3, 32, 32)), {"method": {"name": "vat"}}).method
    assert (method.weight, method.ramp, method.epsilon) == (1, 0, 8)
    assert chosen(data([0, 1] * 5, 4, (3, 16, 16)), {"method": {"name": "vat"}}).method.epsilon == 4


def test_classes_come_as_often_as_they_have_labels_or_equally_often_on_request() -> None:
    dataset = data([0] * 30 + [1] * 10, 100)
    for given, expected in (({}, 1 / 4), ({"balanced": True}, 1 / 2)):
        config = chosen(dataset, {"split": {"validation": 0}, "batch": given})
        plan = prepare(config, dataset, choose_compute(config.device)).plan
        drawn = dataset.train.labels[plan.epoch(0, 0)[:, : plan.labelled]]
        assert (drawn == 1).mean() == pytest.approx(expected, abs=0.01)


def test_the_learning_rate_follows_what_there_is_to_learn() -> None:
    dataset = data([0, 1] * 50)
    assert chosen(dataset).optimiser.lr == 0.1
    alone = {"method": {"name": "supervised"}}
    assert chosen(dataset, alone).optimiser.lr == 0.1
    assert chosen(data([0, 1] * 50, shape=(1, 16, 16)), alone).optimiser.lr == 0.4
    assert chosen(data([0, 1] * 50, shape=(3, 16, 16)), alone).optimiser.lr == 0.1
    assert chosen(data([0, 1] * 50, shape=(1, 16, 16)), alone | {"model": {"name": "cnn13"}}).optimiser.lr == 0.1
    assert chosen(dataset, {"model": {"name": "timm:resnet18", "pretrained": True}}).optimiser.lr == 0.01
    assert chosen(dataset, {"optimiser": {"name": "adamw"}}).optimiser.lr == 0.001
    assert chosen(dataset, {"optimiser": {"lr": 0.3}}).optimiser.lr == 0.3


PRETRAINED = {"model": {"pretrained": True}}


def test_held_layers_see_the_image_and_its_mirror_image_once() -> None:
    dataset = data([0, 1] * 50, 2000, (3, 32, 32))
    config = chosen(dataset, PRETRAINED)
    assert (config.model.name, config.model.frozen, config.model.dropout) == ("efficientnet-lite0", True, 0.5)
    assert (config.augment.kept, config.method.name, config.method.weight) == (2, "flexmatch", 1.0)
    assert (config.batch.size, config.batch.labelled, config.schedule.epochs) == (320, 64, 300)
    assert config.optimiser.lr == 0.02
    named = {"method": {"name": "flexmatch"}}
    assert [chosen(dataset, PRETRAINED, layer).method.ramp for layer in ({}, named)] == [225, 225]
    assert chosen(dataset, PRETRAINED, named, {"schedule": {"epochs": 60}}).method.ramp == 45
    assert chosen(dataset, PRETRAINED, {"method": {"name": "flexmatch", "ramp": 3}}).method.ramp == 3
    assert chosen(dataset, PRETRAINED, {"method": {"name": "fixmatch"}}).method.ramp == 0
    assert chosen(dataset, named).method.ramp == 1
    assert chosen(dataset, PRETRAINED, gpu=True).method.name == "flexmatch"
    assert chosen(dataset, PRETRAINED, {"augment": {"flip": False}}).augment.kept == 1
    assert chosen(data([0, 1] * 50, 2000, (1, 32, 32)), PRETRAINED).augment.kept == 1
    given = {"augment": {"kept": 5}, "model": {"dropout": 0.1}, "method": {"name": "mean-teacher"}}
    config = chosen(dataset, PRETRAINED, given, {"batch": {"size": 100}})
    assert (config.augment.kept, config.model.dropout, config.batch.labelled) == (5, 0.1, 20)


@pytest.mark.parametrize(
    "given",
    [
        {"model": {"frozen": False}},
        {"method": {"name": "vat"}},  # disturbs the images themselves
        {"augment": {"student": "strong"}},
        {"augment": {"kept": 0}},
        {"augment": {"translate": 9}},  # views of another kind
        {"data": {"extra": "more"}},
    ],
)
def test_layers_see_new_views_at_every_step_where_none_can_be_kept(given: dict[str, Any]) -> None:
    config = chosen(data([0, 1] * 50, 2000, (3, 32, 32)), PRETRAINED, given)
    assert (config.augment.kept, config.batch.size, config.optimiser.lr) == (0, 100, 0.01)


def test_what_is_kept_is_told_and_photographs_are_asked_about() -> None:
    hint = "photographs? --pretrained begins with a network that knows others from ImageNet"
    photographs = data([0, 1] * 50, 2000, (3, 128, 128))
    kept = described(chosen(photographs, PRETRAINED), photographs, gpu=False)
    views = "views: the image and its mirror image, which pass these layers once, before training (augment.kept)"
    assert (
        f"network: efficientnet-lite0 (model.name), its pretrained layers held (model.frozen); {views}; "
        "dropout 0.5 (model.dropout)"
    ) in kept
    assert not any("take long on a CPU" in line or line == hint for line in kept)
    unflipped = {"augment": {"flip": False}}
    for given, words in (({"augment": {"kept": 3}}, "3 views of each image"), (unflipped, "the image as it is")):
        lines = described(chosen(photographs, PRETRAINED, given), photographs, gpu=False)
        assert any(f"views: {words}, which" in line for line in lines)
    assert hint in described(chosen(photographs), photographs, gpu=False)
    for dataset, given in (
        (data([0, 1] * 50, shape=(1, 32, 32)), {}),
        (data([0, 1] * 50, shape=(3, 16, 16)), {}),
        (photographs, {"model": {"name": "small"}}),
    ):
        assert hint not in described(chosen(dataset, given), dataset, gpu=False)


def test_the_method_is_the_one_that_won_where_it_was_compared() -> None:
    dataset = data([0, 1] * 50)
    fixmatch = chosen(dataset).method
    assert (fixmatch.name, fixmatch.weight, fixmatch.ramp, fixmatch.threshold) == ("fixmatch", 1.0, 0.0, 0.95)
    assert fixmatch == chosen(dataset, {"method": {"name": "fixmatch"}}).method
    assert chosen(data([0, 1] * 50, 0)).method.name == "supervised"
    assert chosen(dataset, {"data": {"extra": "others.npy"}}).method.name == "mean-teacher"
    assert chosen(dataset, {"method": {"threshold": 0.8}}).method.threshold == 0.8
    taught = chosen(dataset, {"method": {"teacher_decay": 0.9}}).method
    assert (taught.name, taught.teacher_decay, taught.weight) == ("mean-teacher", 0.9, 13.0)
    # A weight means something else to each: who gave one before FixMatch was the default meant Mean Teacher's.
    assert chosen(dataset, {"method": {"weight": 30}}).method.name == "mean-teacher"
    assert chosen(dataset, gpu=True).method.name == "mean-teacher"
    assert (chosen(dataset).model.heads, chosen(dataset, {"method": {"name": "pi"}}).model.heads) == (1, 2)
    with pytest.raises(RequestError, match=r"method\.epsilon has no effect on the method fixmatch; leave it out\."):
        chosen(dataset, {"method": {"epsilon": 3}})
    with pytest.raises(RequestError, match=r"method\.weight has no effect on the method supervised"):
        chosen(data([0, 1] * 50, 0), {"method": {"weight": 3}})


def test_extra_images_count_as_many_unlabelled_ones() -> None:
    config = chosen(data([0, 1] * 50, 0), {"data": {"extra": "others.npy"}, "split": {"validation": 0}})
    assert config.method.name == "mean-teacher"
    assert (config.batch.labelled, config.batch.steps) == (50, 500)


def test_whatever_is_counted_in_epochs_follows_their_number() -> None:
    config = chosen(data([0, 1] * 50), {"schedule": {"epochs": 24}})
    schedule = config.schedule
    assert (schedule.epochs, schedule.length, schedule.period, schedule.cycle) == (24, 20, 24, 4)
    assert config.method.ramp == 0
    assert chosen(data([0, 1] * 50), {"schedule": {"epochs": 24}, "method": {"name": "pi"}}).method.ramp == 2
    assert (config.evaluation.every, config.checkpoint.every) == (2, 2)
    fast, swa = config.averaging["fast_swa"], config.averaging["swa"]
    assert (fast.start, fast.every, swa.start, swa.every) == (16, 0.4, 20, 4)
    on_cpu, on_gpu = chosen(data([0, 1] * 50)), chosen(data([0, 1] * 50), gpu=True)
    assert (on_cpu.schedule.epochs, on_cpu.schedule.length) == (60, 50)
    assert (on_gpu.schedule.epochs, on_gpu.schedule.length) == (180, 150)


def test_what_a_person_gives_stands() -> None:
    given = {
        "batch": {"size": 40, "labelled": 8, "steps": 3, "balanced": True},
        "augment": {"translate": 0, "flip": True},
        "model": {"name": "cnn13"},
        "method": {"weight": 7, "ramp": 1},
        "schedule": {"epochs": 9, "length": 8, "cycle": 2},
        "averaging": {"fast_swa": {"start": 3}},
        "evaluation": {"every": 4, "refresh": 5, "batch": 6},
        "checkpoint": {"every": 7},
        "split": {"validation": 11},
    }
    config = chosen(data([0, 1] * 50, shape=(1, 16, 16)), given)
    dumped = config.model_dump()
    for section, values in given.items():
        for name, value in values.items():
            kept = dumped[section][name]
            assert kept["start"] == 3 if section == "averaging" else kept == value, (section, name)
    assert config.schedule.period == 9
    assert config.averaging["fast_swa"].every == 0.2
    small = chosen(data([0, 1] * 50), {"batch": {"size": 20}})
    assert (small.batch.size, small.batch.labelled) == (20, 10)


def test_a_configuration_that_was_written_down_is_not_chosen_again() -> None:
    dataset = data([0, 1] * 50)
    config = chosen(dataset)
    again = build_config(tomllib.loads(to_toml(config)))
    assert again == config
    other = data(list(range(10)) * 30, 9000, (3, 32, 32))
    assert own_data_defaults(again, other, gpu=True) == config


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 9), (1, 28, 28), (3, 33, 64), (3, 224, 224)])
@pytest.mark.parametrize("classes", [2, 1000])
def test_a_step_can_be_made_of_every_size(shape: tuple[int, int, int], classes: int) -> None:
    if classes == 1000 and shape[1] > 64:
        pytest.skip("two thousand images of 224 pixels take 300 MB")
    dataset = data(list(range(classes)) * 2, 4, shape)
    config = chosen(dataset, {"batch": {"size": 4}, "split": {"validation": 1}})
    compute = choose_compute(config.device)
    material = prepare(config, dataset, compute)
    student = build_state(config, compute, material.facts, images=len(dataset.train)).student
    views = material.augment.plain(material.pixels[:2])
    assert student(views).logits.shape == (2, classes)


def test_what_was_chosen_is_told_in_a_few_lines() -> None:
    dataset = data([0] * 30 + [1] * 10, 700, (1, 16, 16), test=6)
    config = chosen(dataset)
    assert described(config, dataset, gpu=False) == [
        "data: 32 labelled and 700 unlabelled images of 2 classes, 16x16 grey; 6 for test, 8 held out for validation "
        "(split.validation)",
        "network: small (model.name); views: shifted by up to 2 pixels (augment.translate), no flips, as grey images "
        "are often digits or letters (augment.flip), and strong ones (augment.operations)",
        "method: fixmatch, consistency weight 1 (method.weight); batches of 100, 32 of them labelled (batch.labelled)",
        "length: 60 epochs (schedule.epochs, or --minutes) of 25 steps",
    ]
    short = config.model_copy(update={"schedule": config.schedule.model_copy(update={"epochs": 1})})
    once = described(short, dataset, gpu=False)[-1]
    assert once == "length: 1 epoch (schedule.epochs, or --minutes) of 25 steps"
    large = data([0, 1] * 5, 0, (3, 100, 100))
    lines = described(chosen(large), large, gpu=False, timed=True)
    assert lines[0].startswith("data: 8 labelled images of 2 classes, 100x100 RGB; 2 held out")
    assert lines[1] == "there are no unlabelled images: training is supervised only"
    assert lines[3] == "images of 100 pixels take long on a CPU; --data.size 64 would be several times faster"
    assert lines[-1] == "method: supervised; batches of 100"


@pytest.mark.parametrize(
    ("side", "gpu", "bf16", "given", "precision"),
    [
        (28, False, True, {}, "bf16"),
        (28, False, True, {"precision": "auto"}, "bf16"),
        (8, False, True, {}, "auto"),  # convolutions are too short to gain
        (28, False, False, {}, "auto"),  # imitated, 16 bits would be slower
        (28, True, True, {}, "auto"),  # the device decides
        (28, False, True, {"precision": "fp32"}, "fp32"),
        (28, False, True, {"engine": "compiled"}, "auto"),
    ],
)
def test_a_cpu_with_instructions_for_16_bits_uses_them(
    side: int, gpu: bool, bf16: bool, given: dict[str, str], precision: str
) -> None:
    dataset = data([0, 1] * 10, 30, (1, side, side))
    config = chosen(dataset, {"device": given}, gpu=gpu, bf16=bf16)
    assert config.device.precision == precision
    told = "arithmetic: 16 bits in the network, 32 elsewhere (device.precision)"
    assert (told in described(config, dataset, gpu=gpu)) is (precision == "bf16")


@pytest.mark.parametrize("native", [True, False])
def test_a_run_computes_in_what_suits_the_machine_and_goes_on_in_it(
    native: bool, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=pixels, y_train=np.arange(40) % 2)
    seen = list[torch.dtype]()
    convolve = torch.nn.functional.conv2d

    def watched(x: torch.Tensor, weight: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        out = convolve(x, weight, *others, **named)
        seen.append(out.dtype)
        return out

    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)
    monkeypatch.setattr(setup, "native_bf16", lambda: native)
    answer = command("train", tmp_path / "mine.npz", "--out", tmp_path / "run", *QUICK)
    assert answer.code == 0, answer.err
    precision, dtype = ("bf16", torch.bfloat16) if native else ("fp32", torch.float32)
    assert RunFolder(tmp_path / "run").config().device.precision == precision
    assert RunFolder(tmp_path / "run").known_environment()["precision"] == precision
    assert seen
    assert set(seen) == {dtype}
    # On a machine of the other kind.
    monkeypatch.setattr(setup, "native_bf16", lambda: not native)
    seen.clear()
    assert command("resume", tmp_path / "run", "--epochs", "3", "--no-report").code == 0
    assert set(seen) == {dtype}


def put(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(value).integers(0, 256, (8, 8), dtype=np.uint8)).save(path)


QUICK = ("--epochs", "2", "--batch.steps", "2", "--model.width", "4", "--evaluation.refresh", "1", "--no-report")


def test_a_folder_without_unlabelled_images_is_trained_supervised(tmp_path: Path, command: Command) -> None:
    for number in range(12):
        put(tmp_path / "mine" / "labeled" / "ab"[number % 2] / f"{number}.png", number)
    answer = command("train", tmp_path / "mine", "--out", tmp_path / "run", *QUICK)
    assert answer.code == 0, answer.err
    assert "there are no unlabelled images: training is supervised only\n" in answer.err
    config = RunFolder(tmp_path / "run").config()
    assert config.method.name == "supervised"
    assert (config.split.validation, config.augment.flip, config.schedule.cycle) == (2, False, 0.3333333333333333)
    assert command("resume", tmp_path / "run", "--epochs", "3", "--no-report").code == 0


def test_what_is_left_out_and_what_cannot_be_measured_is_told(tmp_path: Path, command: Command) -> None:
    for number in range(4):
        put(tmp_path / "mine" / "labeled" / "ab"[number % 2] / f"{number}.png", number)
    (tmp_path / "mine" / "unlabeled").mkdir()
    (tmp_path / "mine" / "unlabeled" / "cut.png").write_bytes(b"no image")
    (tmp_path / "mine" / "unlabeled" / "moving.gif").write_bytes(b"GIF")
    refused = command("train", tmp_path / "mine", "--out", tmp_path / "run", *QUICK)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    answer = command("train", tmp_path / "mine", "--out", tmp_path / "run", "--data.skip_bad", *QUICK)
    assert answer.code == 0, answer.err
    lines = [line.removeprefix("fastswa: ") for line in answer.err.splitlines()]
    assert "data: 1 .gif files are left out; save them as JPEG, PNG, WebP or BMP" in lines
    assert "data: images that are missing or cannot be read are left out: 1 (`fastswa check` lists them)" in lines
    assert "there is neither a test nor a validation image: no error can be measured" in lines


def test_a_classs_only_label_is_trained_on() -> None:
    assert chosen(data(list(range(10)))).split.validation == 0
    few = data([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9])
    config = chosen(few)
    assert config.split.validation == 1
    assert set(few.train.labels[split_by(config.split, few).labelled]) == set(range(10))


def test_print_config_shows_what_would_run(tmp_path: Path, command: Command) -> None:
    for number in range(12):
        put(tmp_path / "mine" / "labeled" / "ab"[number % 2] / f"{number}.png", number)
    answer = command("train", tmp_path / "mine", "--epochs", "12", "--print-config")
    shown = tomllib.loads(answer.out)
    assert shown["method"]["name"] == "supervised"
    assert shown["schedule"] == {"epochs": 12, "length": 10, "period": 12, "cycle": 2, "after": "cycles"}
    assert shown["split"]["validation"] == 2


def test_twenty_labelled_images_are_enough(tmp_path: Path, command: Command) -> None:
    for number in range(20):
        put(tmp_path / "mine" / "labeled" / "ab"[number % 2] / f"{number}.png", number)
    for number in range(15):
        put(tmp_path / "mine" / "unlabeled" / f"{number}.png", 100 + number)
        put(tmp_path / "mine" / "test" / "ab"[number % 2] / f"{number}.png", 200 + number)
    answer = command("train", tmp_path / "mine", "--out", tmp_path / "run", *QUICK)
    assert answer.code == 0, answer.err
    lines = [line for line in answer.err.splitlines() if line.startswith("fastswa: ")]
    assert lines[0].startswith(
        "fastswa: data: 20 labelled and 15 unlabelled images of 2 classes, 8x8 grey; 15 for test, "
    )
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    expected = {"size": 100, "labelled": 57, "steps": 2, "balanced": False, "reuse_labelled": False}
    assert config["batch"] == expected
    assert config["split"]["validation"] == 0


def test_a_config_in_python_gets_the_same_defaults(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    labels = np.arange(60) % 2
    labels[30:] = -1
    np.savez(tmp_path / "mine.npz", x_train=pixels, y_train=labels)
    config = Config(data=DataConfig(source=str(tmp_path / "mine.npz")), schedule=ScheduleConfig(epochs=2))
    settings = {"batch": {"steps": 2}, "model": {"width": 4}}
    run = fit(config, out=tmp_path / "run", settings=settings)
    assert run.finished
    kept = RunFolder(tmp_path / "run").config()
    assert (kept.augment.flip, kept.batch.labelled, kept.split.validation) == (False, 44, 6)
