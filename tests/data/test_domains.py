"""Two domains: which classes are the same, what stays of each side, and every kind of target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastswa.data.batches import plan_batches
from fastswa.data.domains import (
    Target,
    domain_facts,
    domain_lines,
    domain_warnings,
    load_target,
    match_classes,
    pair_domains,
    shared_images,
)
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.data.sources import load
from fastswa.data.sources.cifar_names import CIFAR10
from fastswa.data.sources.stl10 import CLASSES as STL10
from fastswa.data.splits import Split
from fastswa.errors import RequestError

SHAPE = (3, 8, 8)


def pixels(count: int, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def images(labels: list[int], classes: tuple[str, ...], seed: int = 0) -> ImageSet:
    return ImageSet(pixels(len(labels), seed), np.array(labels, dtype=np.int64), classes)


def source() -> Dataset:
    """Image k of class k % 3, and one without a label."""
    classes = ("cat", "automobile", "frog")
    return Dataset(images([0, 1, 2, 0, 1, 2, UNLABELLED], classes, 1), images([2, 1, 0], classes, 2))


def target() -> Dataset:
    classes = ("Car", "monkey", "cat")
    return Dataset(images([0, 1, 2, UNLABELLED, 0], classes, 3), images([1, 2, 0, 0], classes, 4))


def paired(first: Dataset, second: Dataset, **named: object) -> Dataset:
    return pair_domains("a", "b", first, Target(second, SHAPE), {}, **named)  # type: ignore[arg-type]


def test_cifar10_and_stl10_share_nine_classes() -> None:
    pairs = match_classes(CIFAR10, STL10, {})
    assert len(pairs) == 9
    names = {CIFAR10[a]: STL10[b] for a, b in pairs}
    assert names.pop("automobile") == "car"
    assert all(ours == theirs for ours, theirs in names.items())
    assert set(CIFAR10) - {CIFAR10[a] for a, _ in pairs} == {"frog"}
    assert set(STL10) - {STL10[b] for _, b in pairs} == {"monkey"}


def test_aliases_of_ones_own_go_both_ways_and_by_way_of_others() -> None:
    assert match_classes(["lorry", "dog"], ["dog", "truck"], {"truck": "lorry"}) == [(0, 1), (1, 0)]
    assert match_classes(["a", "x"], ["x", "c"], {"a": "x", "x": "c"}) == [(0, 1), (1, 0)]
    assert match_classes([" Café"], ["cafe\u0301 "], {}) == [(0, 0)]


def test_equal_names_come_before_aliases() -> None:
    assert match_classes(["automobile", "car"], ["car", "bus"], {}) == [(1, 0)]


def test_aliases_of_ones_own_come_before_the_built_in_ones() -> None:
    theirs = ["bus", "car", "auto"]
    assert match_classes(["bus", "automobile"], theirs, {}) == [(0, 0), (1, 1)]
    assert match_classes(["bus", "automobile"], theirs, {"automobile": "auto"}) == [(0, 0), (1, 2)]


@pytest.mark.parametrize("aliases", [{"3": "8"}, {"cat": "lynx"}, {"cat": "puma"}, {"dog": "wolf", "cat": "lynx"}])
def test_an_alias_that_matches_nothing_is_refused(aliases: dict[str, str]) -> None:
    """Both names are on both sides, one of them is, or both are on one."""
    one, other = list(aliases.items())[-1]
    with pytest.raises(RequestError, match=f"^data.aliases: {one}={other} matches nothing; an alias is for a class"):
        match_classes(["3", "8", "cat", "puma", "dog"], ["3", "8", "cat", "lynx", "wolf"], aliases)


WRONG_ALIASES = [
    ({"lory": "truck"}, "neither side has a class 'lory'"),
    ({"lorry": "truck", "van": "truck"}, "'lorry' and 'van' would both be 'truck'"),
    ({"lorry": "truck", "lorry ": "cat"}, "'cat' and 'truck' would both be 'lorry'"),
]


@pytest.mark.parametrize(("aliases", "why"), WRONG_ALIASES, ids=range(len(WRONG_ALIASES)))
def test_aliases_that_say_nothing_clear_are_refused(aliases: dict[str, str], why: str) -> None:
    with pytest.raises(RequestError, match=f"^data.aliases: {why}"):
        match_classes(["lorry", "van"], ["cat", "truck"], aliases)


def test_what_stays_of_each_side() -> None:
    """Shared classes with the source's numbers; of the target's training images those of unknown class as well."""
    first, second = source(), target()
    dataset = paired(first, second)
    domains = dataset.domains
    assert domains is not None
    assert dataset.classes == ("cat", "automobile")
    assert np.array_equal(dataset.train.pixels, first.train.pixels[[0, 1, 3, 4]])
    assert dataset.train.labels.tolist() == [0, 1, 0, 1]
    assert np.array_equal(domains.images.pixels, second.train.pixels[[0, 2, 3, 4]])
    assert dataset.test is not None
    assert second.test is not None
    assert np.array_equal(dataset.test.pixels, second.test.pixels[1:])
    assert dataset.test.labels.tolist() == [0, 1, 1]
    assert domains.source_test is not None
    assert domains.source_test.labels.tolist() == [1, 0]
    assert domains.source_only == ("frog",)
    assert domains.target_only == ("monkey",)


def test_no_label_of_the_targets_training_images_is_left() -> None:
    domains = paired(source(), target()).domains
    assert domains is not None
    assert (domains.images.labels == UNLABELLED).all()


def test_a_target_without_classes_keeps_all_of_the_sources() -> None:
    second = Dataset(images([UNLABELLED] * 4, (), 5), None)
    dataset = paired(source(), second)
    assert dataset.classes == ("cat", "automobile", "frog")
    assert dataset.test is None
    assert dataset.domains is not None
    assert len(dataset.domains.images) == 4
    lines = list(domain_lines(dataset, dataset.domains))
    assert lines[0] == "domains: b names no class; all 3 of a are taken to be in it"
    assert "it has no labelled test images, so that errors are those on images of a" in lines[1]
    with pytest.raises(RequestError, match=r"data\.aliases: b names no class"):
        pair_domains("a", "b", source(), Target(second, SHAPE), {"frog": "toad"})


def test_what_was_matched_and_left_out_is_said() -> None:
    dataset = paired(source(), target())
    assert dataset.domains is not None
    assert list(domain_lines(dataset, dataset.domains)) == [
        "domains: 2 classes of a and b are matched (automobile = Car)",
        "left out, as only a has them: frog",
        "left out, as only b has them: monkey",
        "target: 4 images of b, whose labels are not looked at; errors are those on its 3 test images",
    ]
    facts = domain_facts(dataset, dataset.domains)
    assert facts["classes"] == {"cat": "cat", "automobile": "Car"}
    assert facts["left_out"] == {"source": ["frog"], "target": ["monkey"]}
    assert facts["images"] == {"source": 4, "source_test": 2, "target": 4, "target_test": 3}


def test_fewer_target_images_are_drawn_by_the_seed() -> None:
    second = Dataset(images([UNLABELLED] * 20, (), 6), None)
    drawn = [paired(source(), second, unlabelled=5, seed=seed).domains for seed in (1, 1, 2)]
    contents = [d.images.pixels.tobytes() for d in drawn if d is not None]
    assert contents[0] == contents[1] != contents[2]
    with pytest.raises(RequestError, match=r"split.unlabelled: 21 target images are wanted, .* 20 are there"):
        paired(source(), second, unlabelled=21)


def test_nothing_in_common_is_refused() -> None:
    second = Dataset(images([0, 1, 0], ("ship", "plane")), None)
    why = r"^data.target: a \(cat, automobile, frog\) and b \(ship, plane\) have no class in common; data.aliases"
    with pytest.raises(RequestError, match=why):
        paired(source(), second)
    second = Dataset(images([0, 1, 0], ("ship", "frog")), None)
    with pytest.raises(RequestError, match="have only the class 'frog' in common"):
        paired(source(), second)


@pytest.mark.parametrize(
    ("labels", "count"),
    [([], "no training image"), ([0], "a single training image"), ([1, 1, 0], "a single training image")],
)
def test_a_target_with_one_image_or_none_is_refused(labels: list[int], count: str) -> None:
    """The last one has two more, of a class that the source lacks."""
    second = Dataset(images(labels, ("cat", "monkey", "frog")), None)
    with pytest.raises(RequestError, match=f"^data.target: b has {count} of a class that a has or of unknown class; a"):
        paired(source(), second)


def test_a_target_that_is_the_source_is_warned_of() -> None:
    first = source()
    dataset = paired(first, first)
    assert dataset.domains is not None
    assert list(domain_warnings(dataset, dataset.domains)) == [
        "data.target: 6 of the 7 images of b are, pixel by pixel, images of a as well."
    ]
    labelled = Dataset(images([0, 1, 0], ("cat", "frog"), 7), None)
    dataset = paired(labelled, labelled)
    assert dataset.domains is not None
    assert next(iter(domain_warnings(dataset, dataset.domains))).endswith("the two are one domain.")
    dataset = paired(first, target())
    assert dataset.domains is not None
    assert list(domain_warnings(dataset, dataset.domains)) == []
    assert shared_images(first.train, target().train) == 0


def test_a_digest_knows_the_target_but_not_its_labels() -> None:
    first, second = source(), target()
    permuted = Dataset(ImageSet(second.train.pixels, np.array([2, 1, 0, UNLABELLED, 0]), second.classes), second.test)
    other = Dataset(images([0, 1, 2, UNLABELLED, 0], second.classes, 9), second.test)
    digests = [paired(first, dataset).digest() for dataset in (second, permuted, other)]
    assert digests[0] == digests[1] != digests[2]


def write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(path)


def test_a_folder_with_unlabelled_images_alone(tmp_path: Path) -> None:
    shots = pixels(3)
    for number, image in enumerate(shots):
        write(tmp_path / "unlabeled" / "deep" / f"{number}.png", image)
    found = load_target(str(tmp_path), tmp_path, SHAPE)
    assert np.array_equal(found.dataset.train.pixels, shots)
    assert found.dataset.classes == ()
    assert found.dataset.test is None


def test_a_folder_of_images_anywhere_and_of_test_images(tmp_path: Path) -> None:
    shots = pixels(4)
    for name, image in zip(("a.png", "phone/b.png", "test/cat/c.png", "test/dog/d.png"), shots, strict=True):
        write(tmp_path / name, image)
    dataset = load_target(str(tmp_path), tmp_path, SHAPE).dataset
    assert np.array_equal(dataset.train.pixels, shots[:2])
    assert (dataset.train.labels == UNLABELLED).all()
    assert dataset.test is not None
    assert np.array_equal(dataset.test.pixels, shots[2:])
    assert [dataset.classes[label] for label in dataset.test.labels] == ["cat", "dog"]


def test_a_folder_with_labels_has_the_classes_of_both_parts(tmp_path: Path) -> None:
    for name in ("labeled/dog/1.png", "labeled/cat/1.png", "unlabelled/1.png", "test/cat/2.png", "test/ape/2.png"):
        write(tmp_path / name, pixels(1, len(name))[0])
    (tmp_path / "labeled" / "empty").mkdir()
    dataset = load_target(str(tmp_path), tmp_path, SHAPE).dataset
    assert set(dataset.classes) == {"cat", "dog", "ape"}
    assert [dataset.classes[label] for label in dataset.train.labels[:2]] == ["cat", "dog"]
    assert dataset.train.labels[2] == UNLABELLED
    assert dataset.test is not None
    assert [dataset.classes[label] for label in dataset.test.labels] == ["ape", "cat"]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^data.target: .* holds no training image; put some in .*unlabeled/\.$"):
        load_target(str(tmp_path), tmp_path, SHAPE)
    write(tmp_path / "test" / "cat" / "1.png", pixels(1)[0])
    with pytest.raises(RequestError, match=r"^data.target: .* holds no training image; put some in"):
        load_target(str(tmp_path), tmp_path, SHAPE)


def test_a_manifest_of_paths_is_enough(tmp_path: Path) -> None:
    for number, image in enumerate(pixels(3)):
        write(tmp_path / f"{number}.png", image)
    (tmp_path / "list.csv").write_text("path\n0.png\n1.png\n2.png\n", "utf-8")
    assert load_target(str(tmp_path / "list.csv"), tmp_path, SHAPE).dataset.classes == ()
    (tmp_path / "list.csv").write_text("path,label,split\n0.png,,\n1.png,dog,test\n2.png,ape,train\n", "utf-8")
    dataset = load_target(str(tmp_path / "list.csv"), tmp_path, SHAPE).dataset
    assert dataset.classes == ("ape", "dog")
    assert dataset.train.labels.tolist() == [UNLABELLED, 0]
    (tmp_path / "list.csv").write_text("path,split\n0.png,test\n", "utf-8")
    with pytest.raises(RequestError, match="line 2: a test image needs a label"):
        load_target(str(tmp_path / "list.csv"), tmp_path, SHAPE)


@pytest.mark.parametrize("key", ["x_train", "x_unlabelled"])
def test_an_npz_file_of_images_alone_is_enough(key: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **{key: pixels(3)})  # type: ignore[arg-type]
    dataset = load_target(str(tmp_path / "t.npz"), tmp_path, SHAPE).dataset
    assert np.array_equal(dataset.train.pixels, pixels(3))
    assert dataset.classes == ()
    np.savez(tmp_path / "t.npz", x_test=pixels(3), y_test=np.zeros(3, int))
    with pytest.raises(RequestError, match="lacks x_train"):
        load_target(str(tmp_path / "t.npz"), tmp_path, SHAPE)
    np.savez(tmp_path / "t.npz", **{key: pixels(0)})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="x_train holds no images"):
        load_target(str(tmp_path / "t.npz"), tmp_path, SHAPE)


def test_grey_becomes_rgb_and_sizes_the_sources(tmp_path: Path) -> None:
    """A grey image as RGB holds it three times; one of twice the size is reduced."""
    grey = pixels(2, shape=(1, 8, 8))
    np.savez(tmp_path / "t.npz", x_train=grey[:, 0])
    found = load_target(str(tmp_path / "t.npz"), tmp_path, SHAPE)
    assert np.array_equal(found.dataset.train.pixels, np.repeat(grey, 3, axis=1))
    assert found.notes == ("target images are brought from 8x8 grey to 8x8 RGB",)
    np.savez(tmp_path / "t.npz", x_train=np.full((2, 16, 16, 3), 7, np.uint8))
    found = load_target(str(tmp_path / "t.npz"), tmp_path, (1, 8, 8))
    assert np.array_equal(found.dataset.train.pixels, np.full((2, 1, 8, 8), 7))
    assert found.notes == ("target images are brought from 16x16 RGB to 8x8 grey",)


def test_grey_files_become_rgb_and_that_is_said(tmp_path: Path) -> None:
    grey = pixels(2, shape=(1, 8, 8))
    for number, image in enumerate(grey):
        write(tmp_path / f"{number}.png", image)
    found = load_target(str(tmp_path), tmp_path, SHAPE)
    assert np.array_equal(found.dataset.train.pixels, np.repeat(grey, 3, axis=1))
    assert found.notes == ("target images are grey and are taken as RGB, which the source is.",)
    found = load_target(str(tmp_path), tmp_path, (1, 8, 8))
    assert found.notes == ()
    write(tmp_path / "c.png", pixels(1)[0])
    assert load_target(str(tmp_path), tmp_path, (1, 8, 8)).notes == ("1 coloured image becomes grey.",)


def test_images_that_are_neither_grey_nor_rgb_cannot_be_matched(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x_train=pixels(2, shape=(2, 8, 8)))
    with pytest.raises(RequestError, match=r"only grey and RGB images can be brought .*, and they have 2 channels\.$"):
        load_target(str(tmp_path / "t.npz"), tmp_path, SHAPE)


def test_a_built_in_set_is_a_target_too(tmp_path: Path) -> None:
    """Also where its files lie in a folder of its name."""
    write(tmp_path / "digits" / "1.png", pixels(1)[0])
    found = load_target("digits", tmp_path, (1, 16, 16))
    assert found.dataset.train.shape == (1, 16, 16)
    assert found.dataset.classes == tuple("0123456789")
    with pytest.raises(RequestError, match="there is no data source 'digit'"):
        load_target("digit", tmp_path, SHAPE)


def test_sets_from_arrays_come_in_the_size_asked_for() -> None:
    from fastswa.data.plan import Options

    dataset = load("digits", Path("data"), Options(size=(28, 28), channels=3))
    assert dataset.train.shape == (3, 28, 28)
    assert dataset.test is not None
    assert dataset.test.shape == (3, 28, 28)
    assert load("digits", Path("data"), Options()).train.shape == (1, 8, 8)


def two_domain_plan(labelled: int, target: int, **named: int | None) -> tuple[int, np.ndarray]:
    split = Split(np.arange(labelled), np.arange(0), np.arange(0))
    settings: dict[str, int | None] = {"size": 8, "labelled": 4, "steps": None, **named}
    plan = plan_batches(split, first_extra=labelled, extras=target, two_domains=True, **settings)  # type: ignore[arg-type]
    return plan.steps, plan.epoch(0, 0)


@pytest.mark.parametrize(("labelled", "target", "steps"), [(40, 6, 10), (6, 40, 10), (22, 41, 10), (3, 2, 1)])
def test_an_epoch_covers_the_larger_set(labelled: int, target: int, steps: int) -> None:
    """Of each four a step: images of the larger set once, those of the smaller equally often but for one."""
    found, matrix = two_domain_plan(labelled, target)
    assert (found, matrix.shape) == (steps, (steps, 8))
    assert (matrix[:, :4] < labelled).all()
    assert (matrix[:, 4:] >= labelled).all()
    for part, count in ((matrix[:, :4], labelled), (matrix[:, 4:] - labelled, target)):
        times = np.bincount(part.reshape(-1), minlength=count)
        assert times.max() - times.min() <= 1
    assert matrix[:, 4:].max() < labelled + target


def test_of_a_target_that_the_steps_do_not_get_through_each_epoch_takes_a_part() -> None:
    split = Split(np.arange(4), np.arange(0), np.arange(0))
    plan = plan_batches(split, size=8, labelled=4, steps=3, first_extra=4, extras=100, two_domains=True)
    drawn = [set((plan.epoch(0, epoch)[:, 4:] - 4).reshape(-1).tolist()) for epoch in (0, 1)]
    assert [len(some) for some in drawn] == [12, 12]
    assert drawn[0] != drawn[1]


def test_source_only_training_takes_as_many_steps() -> None:
    split = Split(np.arange(40), np.arange(0), np.arange(0))
    plan = plan_batches(
        split, size=8, labelled=4, steps=None, first_extra=40, extras=6, two_domains=True, labelled_only=True
    )
    assert (plan.steps, plan.labelled, plan.extra_per_epoch) == (10, 8, 0)
    assert plan.epoch(0, 0).max() < 40


@pytest.mark.parametrize(("labelled", "target"), [(40, 6), (6, 40)])
def test_source_only_batches_of_the_sources_share_take_as_many_steps(labelled: int, target: int) -> None:
    """So that the source's images pass equally often with the target's and without."""
    split = Split(np.arange(labelled), np.arange(0), np.arange(0))
    plan = plan_batches(
        split, size=4, labelled=4, steps=None, first_extra=labelled, extras=target, two_domains=True, labelled_only=True
    )
    assert (plan.steps, plan.labelled, plan.extra_per_epoch) == (10, 4, 0)
    assert two_domain_plan(labelled, target)[0] == 10
    assert plan.epoch(0, 0).max() < labelled
