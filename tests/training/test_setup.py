"""From a configuration and images to what a run trains on: defaults for one's own data, refusals, memory maps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fastswa
from fastswa.analysis.subject import flat
from fastswa.data.features import feature_dataset
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.errors import RequestError
from fastswa.layers import build_config, own_data_layer
from fastswa.modelfile import read_facts
from fastswa.training.device import choose_compute
from fastswa.training.run import train_new
from fastswa.training.setup import prepare, with_data_defaults
from fastswa.training.state import build_network
from tiny_runs import StoppingWatcher, assert_same_run, make_trainer, train


def images(labels: list[int], classes: int = 2, size: int = 8, pixels: np.ndarray | None = None) -> ImageSet:
    if pixels is None:
        pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 1, size, size), dtype=np.uint8)
    return ImageSet(pixels, np.array(labels), tuple(str(k) for k in range(classes)))


def validation(
    known: list[int], split: dict[str, object], source: str = "mine.npz", test: ImageSet | None = None
) -> int | None:
    config = build_config(own_data_layer(source), {"split": split})
    return with_data_defaults(config, Dataset(images(known), test)).split.validation


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ({}, 20),  # a fifth of the hundred known labels
        ({"labels": 50}, 10),  # a fifth of the fifty asked for, out of the other fifty
        ({"labels": 96}, 4),  # no more than are left over
        ({"labels": 100}, 0),  # all are asked for
        ({"validation": 7}, 7),
    ],
)
def test_own_data_get_a_validation_split(split: dict[str, object], expected: int) -> None:
    assert validation([0, 1] * 50 + [UNLABELLED] * 200, split) == expected


def test_a_file_of_labelled_images_leaves_none_for_validation(tmp_path: Path) -> None:
    (tmp_path / "split.txt").write_text("0\n1\n2\n")
    assert validation([0, 1] * 50, {"file": str(tmp_path / "split.txt")}) == 0


@pytest.mark.parametrize(("known", "expected"), [(19, 0), (20, 8)])
def test_few_labels_are_all_trained_on_where_there_are_test_images(known: int, expected: int) -> None:
    labels = [0, 1] * known + [UNLABELLED] * 200
    assert validation(labels, {}, test=images([0, 1])) == expected
    assert validation(labels, {}) == 2 * known // 5


def test_built_in_sources_get_none() -> None:
    assert validation([0, 1] * 50, {}, source="digits") == 0


def test_all_labels_asked_for_are_trained_on() -> None:
    dataset = Dataset(images([0, 1] * 50 + [UNLABELLED] * 200), None)
    config = with_data_defaults(build_config(own_data_layer("mine.npz"), {"split": {"labels": 100}}), dataset)
    material = prepare(config, dataset, choose_compute(config.device))
    assert len(material.split.labelled) == 100
    assert len(material.split.unlabelled) == 200
    assert material.evaluators == {}


def test_a_memory_map_trains_like_the_array(tmp_path: Path) -> None:
    labels = [0, 1] * 100
    array = images(labels).pixels
    np.save(tmp_path / "pixels.npy", array)
    mapped = np.load(tmp_path / "pixels.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    config = build_config(own_data_layer("mine.npz"), {"split": {"labels": 20}})
    materials = [
        prepare(with_data_defaults(config, dataset), dataset, choose_compute(config.device))
        for dataset in (Dataset(images(labels, pixels=pixels), None) for pixels in (array, mapped))
    ]
    assert torch.equal(materials[0].pixels, materials[1].pixels)
    assert materials[0].facts == materials[1].facts


def test_one_class_is_refused() -> None:
    dataset = Dataset(images([0] * 100, classes=1), None)
    config = with_data_defaults(build_config(own_data_layer("mine.npz")), dataset)
    with pytest.raises(RequestError, match="there is one class only"):
        prepare(config, dataset, choose_compute(config.device))


@pytest.mark.parametrize(
    ("model", "size", "sentence"),
    [
        ("cnn13", 8, "model.name: cnn13 takes images of at least 12x12, not 8x8."),
        ("shake-shake-26-2x96d", 30, "takes images whose sides are multiples of 4, not 30x30."),
    ],
)
def test_images_that_a_network_cannot_take_are_refused(model: str, size: int, sentence: str) -> None:
    dataset = Dataset(images([0, 1] * 100, size=size), None)
    config = build_config(own_data_layer("mine.npz"), {"model": {"name": model}})
    config = with_data_defaults(config, dataset)
    with pytest.raises(RequestError) as caught:
        prepare(config, dataset, choose_compute(config.device))
    assert str(caught.value).endswith(sentence)


def test_images_beyond_the_memory_are_trained_on_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for number in range(24):
        part = f"labeled/{'ab'[number % 2]}" if number < 8 else "unlabeled"
        (tmp_path / "mine" / part).mkdir(parents=True, exist_ok=True)
        picture = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / "mine" / part / f"{number}.png")
    quick = {"batch": {"size": 8, "steps": 2}, "schedule": {"epochs": 2}, "model": {"width": 4}}
    config = build_config(own_data_layer(str(tmp_path / "mine")), quick, {"split": {"validation": 2}})
    train(config, tmp_path / "copied")
    monkeypatch.setattr("fastswa.training.window.free_memory", lambda device: 0)
    trainer = make_trainer(config, tmp_path / "none")
    assert not trainer.material.pixels.is_contiguous()
    assert trainer.material.pixels.shape == (24, 9, 12, 3)
    said: list[str] = []
    train_new(config, tmp_path / "mapped", StoppingWatcher(), said.append)
    assert said == [
        "the 24 training images (0.0 MiB) take more than half of what cpu has free; "
        "they stay in their file, where each step reads its own."
    ]
    assert_same_run(tmp_path / "mapped", tmp_path / "copied")


def test_strong_views_of_feature_vectors_are_refused() -> None:
    config = build_config({"augment": {"student": "strong", "translate": 0}, "model": {"name": "perceptron"}})
    rows = feature_dataset(np.random.default_rng(0).normal(size=(200, 5)), np.arange(200) % 2, ("a", "b"))
    with pytest.raises(RequestError, match="strong views are made of images, and these are feature vectors"):
        prepare(config, rows, choose_compute(config.device))


def test_networks_begin_by_their_seed_alone_whatever_other_threads_draw(finished: Path) -> None:
    """torch has one generator, from which a network's first weights are drawn; who else uses it notices nothing."""
    facts = read_facts(finished / "model.safetensors")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    alone = {seed: flat(list(build_network(facts, seed, "student").parameters())) for seed in range(8)}
    fastswa.load(finished)
    assert torch.equal(torch.rand(3), expected)
    assert not torch.equal(alone[0], alone[1])
    with ThreadPoolExecutor(4) as pool:
        seeds = [seed for _ in range(10) for seed in alone]
        found = pool.map(lambda seed: flat(list(build_network(facts, seed, "student").parameters())), seeds)
        assert all(torch.equal(one, alone[seed]) for seed, one in zip(seeds, found, strict=True))
