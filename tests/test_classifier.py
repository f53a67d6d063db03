"""The scikit-learn style classifier: its checks, labels with gaps, images and feature vectors, pickles and files."""

from __future__ import annotations

import pickle
import pickletools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastswa
from fastswa.arrays import as_labels, is_unlabelled, to_pixels, white_of
from fastswa.data.sources.digits import load_digits
from fastswa.methods.flexmatch import FlexMatch

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

Classifier = fastswa.Classifier

EXPECTED_FAILURES = {
    "check_classifiers_classes": (
        "its last part names two classes -1 and 1, and -1 means unlabelled here, as in scikit-learn's own "
        "semi-supervised classifiers, which the check exempts by name; it passes with unlabelled=None"
    )
}


@parametrize_with_checks([Classifier()], expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_scikit_learns_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_the_check_that_names_a_class_minus_one_passes_where_minus_one_is_a_class() -> None:
    check_classifiers_classes("Classifier", Classifier(unlabelled=None))


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 8, 8) uint8 and labels."""
    train = load_digits().train
    return train.pixels[:300, 0], train.labels[:300]


# Ends in a tenth of a second; for what does not depend on how well it learns.
SHORT: dict[str, Any] = {
    "epochs": 1,
    "random_state": 0,
    "device": "cpu",
    "settings": {"model": {"width": 4}, "batch": {"steps": 2}},
}


def strips() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two long parallel strips, and labels at the left end of one and the right end of the other only."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = np.stack([rng.uniform(-1, 1, 200), np.where(y == 1, 0.5, -0.5) + rng.normal(0, 0.05, 200)], axis=1)
    few = np.full(200, -1)
    for label, end in ((0, -1), (1, 1)):
        members = np.flatnonzero(y == label)
        few[members[np.argsort(end * X[members, 0])[-4:]]] = label
    return X, y, few


@pytest.mark.parametrize("seed", [0, 1])
def test_unlabelled_rows_show_where_the_classes_part(seed: int) -> None:
    X, y, few = strips()
    together = Classifier("pi", epochs=40, random_state=seed).fit(X, few)
    alone = Classifier("supervised", epochs=40, random_state=seed).fit(X, few)
    assert together.score(X, y) == 1.0
    assert alone.score(X, y) < 0.9


def test_every_row_is_trained_on_and_no_hidden_label_is(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    few = np.where(np.arange(300) < 40, labels, -1)
    one, again, changed = (
        Classifier(**SHORT).fit(x, few).predict_proba(images)
        for x in (images, images, np.where(np.arange(300)[:, None, None] < 299, images, 255 - images))
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, changed)


def test_the_method_follows_what_there_is(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    few = np.where(np.arange(300) < 40, labels, -1)

    def taken(X: np.ndarray, y: np.ndarray, **given: Any) -> str:
        classifier = Classifier(**SHORT, **given)
        dataset = classifier._dataset(rows := classifier._rows(X, fitting=True), classifier._labels(rows, y))
        return classifier._config(dataset).method.name

    assert taken(images, few) == "fixmatch"
    assert taken(images, labels) == "supervised"
    assert taken(images, few, method="pi") == "pi"
    assert taken(images.reshape(300, 64) / 16.0, few) == "mean-teacher"
    assert Classifier(**SHORT).fit(images, few).history_[-1]["pseudo_labels"]


@pytest.mark.parametrize(
    "settings",
    [
        {"start": {"weights": "nowhere.safetensors"}},
        {"data": {"extra": "nowhere"}},
        {"checkpoint": {"keep_every": 1}},
        {"log": {"tensorboard": True}},
    ],
)
def test_settings_about_files_are_refused(digits: tuple[np.ndarray, np.ndarray], settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has no effect on rows in memory; leave it out"):
        Classifier(**{**SHORT, "settings": settings}).fit(*digits)


def test_flexmatch_counts_the_unlabelled_rows_alone(
    digits: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thresholds are shares of them: with the labelled ones among these they would never rise."""
    told = []
    real = FlexMatch.introduce
    monkeypatch.setattr(
        FlexMatch, "introduce", lambda self, count, truth: (told.append(count), real(self, count, truth))[1]
    )
    images, labels = digits
    Classifier("flexmatch", **SHORT).fit(images, np.where(np.arange(300) < 240, labels, -1))
    assert set(told) == {60}


@pytest.mark.parametrize("method", ["mean-teacher", "pi", "supervised", "temporal-ensembling", "vat", "vat-entmin"])
@pytest.mark.parametrize("flat", [True, False])
def test_every_method_takes_images_and_feature_vectors(
    digits: tuple[np.ndarray, np.ndarray], method: str, flat: bool
) -> None:
    images, labels = digits
    X = images.reshape(300, 64) / 16.0 if flat else images
    fitted = Classifier(method, **SHORT).fit(X, np.where(np.arange(300) < 40, labels, -1))
    probabilities = fitted.predict_proba(X[:7])
    assert probabilities.shape == (7, 10)
    assert probabilities.dtype == np.float32
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert np.array_equal(fitted.predict(X[:7]), fitted.classes_[probabilities.argmax(axis=1)])
    assert fitted.n_features_in_ == 64
    assert fitted.model_.facts.architecture == ("perceptron" if flat else "small")
    assert fitted.model_.facts.network == "fast_swa"


@pytest.mark.parametrize(
    ("labels", "value", "expected"),
    [
        ([0, -1, 2, -1], -1, [0, 1, 0, 1]),
        ([0, -1, 2, -1], None, [0, 0, 0, 0]),
        ([0, 9, 2, 9], 9, [0, 1, 0, 1]),
        ([0.0, np.nan, 1.0, -1.0], -1, [0, 1, 0, 1]),
        (["cat", "", "dog", "-1"], -1, [0, 1, 0, 1]),
        (["cat", "?", "dog", "dog"], "?", [0, 1, 0, 0]),
        (np.array(["cat", None, "", -1, float("nan")], dtype=object), -1, [0, 1, 1, 1, 1]),
        ([True, False], -1, [0, 0]),
        (np.array(["cat", "-1", "dog"]), -1, [0, 1, 0]),
        (np.array(["cat", "-1", "dog"], dtype=object), -1, [0, 1, 0]),
        (np.array(["cat", "None", ""]), None, [0, 0, 1]),
        (["cat", "dog", float("nan")], -1, [0, 0, 1]),
        ([0, None, -1, 1, np.int64(-1), -1.0], -1, [0, 1, 1, 0, 1, 1]),
        ([0, None, -1, 1], None, [0, 1, 0, 0]),
        ([True, False, -1, 1], True, [1, 0, 0, 1]),
        ([torch.tensor(0), torch.tensor(-1)], -1, [0, 1]),
        ([0, np.ma.masked, 1], -1, [0, 1, 0]),
        (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), -1, [0, 1]),
    ],
)
def test_which_labels_count_as_none(labels: Any, value: Any, expected: list[int]) -> None:
    assert is_unlabelled(as_labels(labels), value).tolist() == [bool(e) for e in expected]


class NotAvailable:
    """Like pandas' NA, which answers comparisons with itself and has no truth."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


class Column:
    """Like a column of pandas or polars: no array, but it can become one."""

    def __init__(self, *labels: Any, dtype: Any = object) -> None:
        self.labels, self.dtype = np.array(labels, dtype), dtype


class Convertible(Column):
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.labels


class WithToNumpy(Column):
    def to_numpy(self) -> np.ndarray:
        return self.labels


NAN = float("nan")
KNOWN = [
    # What y is, its classes and their kind of number, and the class of each row.
    (["setosa", "other", NAN, "other"], ["other", "setosa"], "U", [1, 0, -1, 0]),
    (["setosa", None, "", -1, "-1", "other"], ["other", "setosa"], "U", [1, -1, -1, -1, -1, 0]),
    ([np.str_("b"), None, np.str_("a")], ["a", "b"], "U", [1, -1, 0]),
    (np.array(["setosa", NAN, "other"], dtype=object), ["other", "setosa"], "O", [1, -1, 0]),
    (np.array(["b", "", "a"]), ["a", "b"], "U", [1, -1, 0]),
    ([7, None, 3], [3, 7], "i", [1, -1, 0]),
    ((7, NAN, -1, 3), [3, 7], "i", [1, -1, -1, 0]),
    ([0, -1, 1], [0, 1], "i", [0, -1, 1]),
    ([np.uint8(7), None, np.uint8(3)], [3, 7], "u", [1, -1, 0]),
    (np.array([0, -1, 1], dtype=object), [0, 1], "i", [0, -1, 1]),
    (np.array([0, NAN, None, 1], dtype=object), [0, 1], "i", [0, -1, -1, 1]),
    (np.array([0, -1, 1], dtype=np.int8), [0, 1], "i", [0, -1, 1]),
    (np.array([0, 255, 255], dtype=np.uint8), [0, 255], "u", [0, 1, 1]),
    (np.array([2.0, NAN, -1, 1.0]), [1.0, 2.0], "f", [1, -1, -1, 0]),
    ([True, None, False], [False, True], "b", [1, -1, 0]),
    ([True, -1, False], [False, True], "b", [1, -1, 0]),
    ([True, 0, None, 2], [0, 1, 2], "i", [1, 0, -1, 2]),
    (np.array([True, None, False], dtype=object), [False, True], "b", [1, -1, 0]),
    (np.array([True, False]), [False, True], "b", [1, 0]),
    (np.ma.masked_array([5, 5, 6, 7], mask=[0, 0, 1, 0]), [5, 7], "i", [0, 0, -1, 1]),
    (np.ma.masked_array([5, -1, 7]), [5, 7], "i", [0, -1, 1]),
    (np.ma.masked_array(["b", "c", "a"], mask=[0, 1, 0]), ["a", "b"], "U", [1, -1, 0]),
    (Convertible(1, NotAvailable(), 0), [0, 1], "i", [1, -1, 0]),
    (Convertible(True, NotAvailable(), False), [False, True], "b", [1, -1, 0]),
    (Convertible("b", NAN, "a"), ["a", "b"], "O", [1, -1, 0]),
    (Convertible(1, -1, 0, dtype=np.int64), [0, 1], "i", [1, -1, 0]),
    (WithToNumpy(1, None, 0), [0, 1], "i", [1, -1, 0]),
    (torch.tensor([4, -1, 2]), [2, 4], "i", [1, -1, 0]),
]


@pytest.mark.parametrize(("y", "classes", "kind", "numbers"), KNOWN)
def test_labels_are_what_they_would_be_without_the_gaps(
    y: Any, classes: list[Any], kind: str, numbers: list[int]
) -> None:
    classifier = Classifier()
    assert classifier._labels(np.zeros((len(numbers), 2)), y).tolist() == numbers
    assert classifier.classes_.tolist() == classes
    assert classifier.classes_.dtype.kind == kind


def test_a_fit_with_gaps_in_a_list_is_the_fit_with_minus_one() -> None:
    X, _, few = strips()
    plain = Classifier(**SHORT).fit(X, few)
    for gap in (None, float("nan")):
        listed = Classifier(**SHORT).fit(X, [gap if label == -1 else int(label) for label in few])
        assert np.array_equal(listed.predict_proba(X), plain.predict_proba(X))
    truth = Classifier(**SHORT).fit(X, [None if label == -1 else bool(label) for label in few])
    assert truth.predict(X).dtype == bool
    assert np.array_equal(truth.predict(X), plain.predict(X) == 1)


def test_text_labels_with_gaps() -> None:
    wine = load_wine()
    names = wine.target_names[wine.target].astype(object)
    few = names.copy()
    few[1::2] = None
    fitted = Classifier(random_state=0).fit(wine.data, few)
    assert fitted.classes_.tolist() == ["class_0", "class_1", "class_2"]
    assert fitted.score(wine.data[1::2], names[1::2]) > 0.9
    assert fitted.model_.classes == ("class_0", "class_1", "class_2")


@pytest.mark.parametrize(
    ("convert", "white"),
    [
        (lambda x: x, 255),
        (lambda x: x.astype(np.int64), 255),
        (lambda x: x / 255, 1),
        (lambda x: x.astype(np.float32), 255),
        (lambda x: np.repeat(x[..., None], 3, axis=3), 255),
    ],
)
def test_images_in_any_form_are_the_same_pixels(
    digits: tuple[np.ndarray, np.ndarray], convert: Callable[[np.ndarray], np.ndarray], white: int
) -> None:
    images = convert(digits[0])
    assert white_of(images) == white
    pixels = to_pixels(images, white)
    assert pixels.dtype == np.uint8
    assert pixels.flags["C_CONTIGUOUS"]
    assert all(np.array_equal(channel, digits[0]) for channel in pixels.swapaxes(0, 1))


def test_resized_floats_overshoot_white_a_little(digits: tuple[np.ndarray, np.ndarray]) -> None:
    for dtype in (np.float32, np.float64):
        images = (digits[0] / 255).astype(dtype)
        for brightest in (np.nextafter(dtype(1), dtype(2)), 1.004, 1.01):
            images[0, 0, 0] = brightest
            assert white_of(images) == 1
            assert np.array_equal(to_pixels(images, 1)[1:, 0], digits[0][1:])
            assert to_pixels(images, 1)[0, 0, 0, 0] == 255
        images[0, 0, 0] = 1.02
        assert white_of(images) == 255
        with pytest.warns(
            UserWarning, match=r"^the images reach no further than 1\.02 where 255 is white, so that they"
        ):
            to_pixels(images, 255)
        with pytest.raises(ValueError, match=r"between 0 and 1, and these go from 0 to 1\.02"):
            to_pixels(images, 1)


@pytest.mark.parametrize("white", [255, 1])
def test_floats_on_a_smaller_scale_than_those_of_fit_are_a_warning(
    digits: tuple[np.ndarray, np.ndarray], white: int
) -> None:
    images = digits[0][:20] / 255 * white
    fitted = Classifier(**SHORT).fit(images, digits[1][:20])
    assert fitted.white_ == white
    with pytest.warns(UserWarning, match=rf"than {white / 255:g} where {white} is white.*; scale them if") as warned:
        fitted.predict(images / 255)
    assert [warning.filename for warning in warned] == [__file__]
    # Errors here, as all warnings are: black is black on any scale, and 3% of white is no wrong scale.
    fitted.predict(np.zeros_like(images))
    fitted.predict(images * 0.03)


def test_truth_values_are_black_and_white() -> None:
    images = np.eye(8, dtype=bool)[None]
    assert np.array_equal(to_pixels(images, white_of(images))[0, 0], 255 * np.eye(8))


def test_features_of_any_range_and_offset_are_standardised() -> None:
    """Times in seconds since 1970 over a minute, and numbers beyond 32 bits: scaling must not round them away."""
    X, y, few = strips()
    far = X * [60.0, 1e60] + [1.7e9, 3e60]
    near, moved = (Classifier("pi", epochs=40, random_state=0).fit(x, few) for x in (X, far))
    assert moved.score(far, y) == 1.0
    assert np.allclose(near.predict_proba(X), moved.predict_proba(far), atol=1e-3)
    assert np.isfinite(moved.predict_proba(far * 1e200)).all()
    constant = np.concatenate([X, np.full((len(X), 1), 7.0)], axis=1)
    assert Classifier("pi", epochs=40, random_state=0).fit(constant, few).score(constant, y) == 1.0


X3 = np.zeros((6, 8, 8), np.uint8)
Y = [0, 1, 0, 1, -1, -1]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no label": (lambda: Classifier().fit(X3, [-1] * 6), "y holds no label; at least two classes are needed"),
    "one class": (lambda: Classifier().fit(X3, [3, 3, 3, -1, -1, -1]), r"one class only \(3\)"),
    "channels first": (lambda: Classifier().fit(np.zeros((6, 3, 8, 8)), Y), "channels last"),
    "five axes": (lambda: Classifier().fit(np.zeros((6, 2, 8, 8, 3)), Y), "not of shape"),
    "too bright": (
        lambda: Classifier().fit(X3.astype(int) + 300, Y),
        "between 0 and 255, and these go from 300 to 300",
    ),
    "negative": (lambda: Classifier().fit(X3 - 1.0, Y), "between 0 and 1, and these go from -1"),
    "text as images": (lambda: Classifier().fit(np.full((6, 8, 8), "a"), Y), "must be numbers"),
    "lengths": (lambda: Classifier().fit(X3, [0, 1]), "inconsistent numbers of samples"),
    "no y": (lambda: Classifier().fit(X3, None), "requires y to be passed"),
    "image too small": (lambda: Classifier().fit(X3[:, :2, :2], Y), "at least 4x4, not 2x2"),
    "a CNN for features": (lambda: Classifier(model="small").fit(np.eye(6), Y), "at least 4x4, not 1x1"),
    "features for images": (lambda: Classifier(model="perceptron").fit(X3, Y), "takes feature vectors, not images"),
    "method": (lambda: Classifier("mean-techer").fit(X3, Y), "unknown method 'mean-techer'; did you mean mean-teacher"),
    "setting": (lambda: Classifier(settings={"augmnt": {}}).fit(X3, Y), "unknown setting augmnt; did you mean augment"),
    "misspelt": (
        lambda: Classifier("pi", settings={"method": {"wieght": 1}}).fit(X3, Y),
        "unknown setting method.wieght; did you mean weight",
    ),
    "no effect": (lambda: Classifier("pi", settings={"method": {"xi": 1}}).fit(X3, Y), "method.xi has no effect"),
    "settings as text": (
        lambda: Classifier(settings="x").fit(X3, Y),  # type: ignore[arg-type]
        r"""^settings must be a mapping such as \{"augment": \{"flip": True\}\}, not 'x'\.$""",
    ),
    "a method as text": (
        lambda: Classifier(settings={"method": "pi"}).fit(X3, Y),
        r"""^settings: method must be a mapping such as \{"name": "pi"\}, not 'pi'\.$""",
    ),
    "settings as a list": (lambda: Classifier(settings=[]).fit(X3, Y), r"^settings must be a mapping .*, not \[\]\.$"),  # type: ignore[arg-type]
    "lists as labels": (
        lambda: Classifier().fit(X3, [[0], [0, 1], None, None, None, None]),
        "multi-label|Unknown label",
    ),
    "continuous": (lambda: Classifier().fit(X3, [0.5, 1.5, None, None, None, None]), "Unknown label type: continuous"),
    "infinite": (
        lambda: Classifier().fit(X3, np.array([float("inf"), 1, None, 0, 0, 0], dtype=object)),
        "Input y contains infinity",
    ),
    "all masked": (lambda: Classifier().fit(X3, np.ma.masked_all(6, int)), "y holds no label"),
    "both lengths": (
        lambda: Classifier(minutes=1, epochs=2).fit(X3, Y),
        "^minutes and epochs both say how long to train",
    ),
    "epochs twice": (
        lambda: Classifier(epochs=2, settings={"schedule": {"epochs": 3}}).fit(X3, Y),
        r"^epochs and settings: schedule\.epochs both say how long to train; give one of them\.$",
    ),
    "minutes and epochs": (
        lambda: Classifier(minutes=2, settings={"schedule": {"epochs": 3}}).fit(X3, Y),
        r"^minutes and settings: schedule\.epochs both say",
    ),
    "minutes and steps": (
        lambda: Classifier(minutes=2, settings={"batch": {"steps": 3}}).fit(X3, Y),
        r"^minutes and settings: batch\.steps both say how long to train; give one of them\.$",
    ),
    "no minutes": (lambda: Classifier(minutes=0).fit(X3, Y), r"^minutes must be a number above zero, not 0\.$"),
    "endless": (lambda: Classifier(minutes=float("inf")).fit(X3, Y), r"^minutes must be a number above zero, not inf"),
    "epochs": (
        lambda: Classifier(epochs=-1).fit(np.eye(6), Y),
        r"^epochs must be a whole number above zero, not -1\.$",
    ),
    "no epochs": (lambda: Classifier(epochs=0).fit(np.eye(6), Y), r"^epochs must be a whole number above zero, not 0"),
    "part of one": (lambda: Classifier(epochs=1.5).fit(np.eye(6), Y), "^epochs must be a whole number above zero"),  # type: ignore[arg-type]
    "no epochs set": (
        lambda: Classifier(settings={"schedule": {"epochs": 0}}).fit(X3, Y),
        r"^settings: schedule\.epochs must be above zero, not 0\.$",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_fitted_is_refused_in_a_sentence(case: str) -> None:
    attempt, message = REFUSED[case]
    with pytest.raises((ValueError, fastswa.RequestError), match=message):
        attempt()


def test_predict_wants_rows_as_fit_had_them(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    fitted = Classifier(**SHORT).fit(images, labels)
    for other in (images[:, :7], images / 255, images.reshape(300, 64), np.repeat(images[..., None], 3, 3)):
        with pytest.raises(ValueError, match=r"X was whole numbers of shape \(N, 8, 8\) in fit; now it is"):
            fitted.predict(other)
    as_floats = Classifier(**SHORT).fit(images / 255, labels)
    with pytest.raises(ValueError, match="between 0 and 1, and these go from 0 to 255"):
        as_floats.predict(images.astype(float))


def test_an_estimator_fits_again_with_other_rows(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    estimator = Classifier(**SHORT)
    assert estimator.fit(images, labels).predict(images).shape == (300,)
    assert estimator.fit(images.reshape(300, 64), labels).n_features_in_ == 64
    assert estimator.predict(images.reshape(300, 64)).shape == (300,)


def test_a_pickle_holds_tensors_and_plain_values_only(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    fitted = Classifier(**SHORT).fit(images, labels)
    content = pickle.dumps(fitted)
    assert np.array_equal(pickle.loads(content).predict_proba(images), fitted.predict_proba(images))
    modules = {
        text.split(".")[0]
        for kind, text, _ in pickletools.genops(content)
        if isinstance(text, str) and kind.name.endswith("UNICODE") and "." in text and text.split(".")[0] in sys.modules
    }
    assert modules <= {"fastswa", "numpy"}


def test_a_saved_model_loads_without_scikit_learn(digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    images, labels = digits
    for X in (images, images.reshape(300, 64) / 7.0):
        fitted = Classifier(**SHORT).fit(X, labels)
        fitted.save(tmp_path / "model.safetensors")
        loaded = fastswa.load(tmp_path / "model.safetensors")
        assert np.array_equal(loaded.predict(X).probabilities, fitted.predict_proba(X))
    with pytest.raises(fastswa.RunError, match=r"^cannot write .*model\.safetensors: No such file or directory\.$"):
        fitted.save(tmp_path / "nowhere" / "model.safetensors")
    with pytest.raises(fastswa.RequestError, match=r"numbers of shape \(N, 64\)"):
        loaded.predict(X[:, :5])


def test_a_method_among_the_settings_is_taken_for_features_too(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    rows = images.reshape(len(images), -1).astype(float)
    short = {"epochs": 1, "random_state": 0, "device": "cpu"}
    named = Classifier(**short, settings={"method": {"name": "pi"}}).fit(rows, labels)
    plain, pi = Classifier(**short).fit(rows, labels), Classifier("pi", **short).fit(rows, labels)
    assert np.array_equal(named.predict_proba(rows), pi.predict_proba(rows))
    assert not np.array_equal(named.predict_proba(rows), plain.predict_proba(rows))


def test_nothing_is_written_or_printed(
    digits: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Classifier(**SHORT).fit(*digits)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_torch_is_left_as_it_was_whatever_its_mode(
    digits: tuple[np.ndarray, np.ndarray], without_gradients: Callable[[], Any]
) -> None:
    images, labels = digits
    expected = Classifier(**SHORT).fit(images, labels).predict_proba(images)
    state = torch.get_rng_state()
    with without_gradients():
        fitted = Classifier(**SHORT).fit(images, labels)
        assert not torch.is_grad_enabled()
        again = pickle.loads(pickle.dumps(fitted))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    for classifier in (fitted, again):
        assert np.array_equal(classifier.predict_proba(images), expected)
        assert not any(parameter.is_inference() for parameter in classifier.model_.parameters())


def test_minutes_decide_the_length() -> None:
    X, _, few = strips()
    fitted = Classifier("supervised", minutes=0.02, random_state=0, device="cpu").fit(X, few)
    assert fitted.history_[-1]["step"] >= 60
    assert fitted.history_[-1]["seconds"] < 6


def test_it_works_inside_scikit_learns_tools(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, labels = digits[0].reshape(300, 64), digits[1]
    assert clone(Classifier("pi", epochs=3)).get_params()["method"] == "pi"
    assert len(cross_val_score(Classifier(**SHORT), X, labels, cv=2)) == 2
    search = GridSearchCV(Classifier(**SHORT), {"epochs": [1, 2]}, cv=2).fit(StandardScaler().fit_transform(X), labels)
    assert search.best_params_["epochs"] in (1, 2)


def test_a_diverging_fit_says_so() -> None:
    X, _, few = strips()
    with pytest.raises(fastswa.RunError, match=r"no longer finite at step \d+; a smaller optimiser\.lr may help\.$"):
        Classifier("supervised", settings={"optimiser": {"lr": 1e30}}, random_state=0).fit(X, few)


def test_without_scikit_learn_one_sentence_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import fastswa\n"
        "from fastswa import *\n"
        "try: fastswa.Classifier\n"
        "except fastswa.RequestError as error: print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == (
        "fastswa.Classifier needs scikit-learn 1.6 or newer; "
        "`pip install '.[sklearn]'` in fastswa's folder brings it.\n"
    )
