"""A classifier in scikit-learn's style: arrays in, a fitted estimator out, no files."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastswa.arrays import as_labels, is_unlabelled, of_one_type, to_pixels, white_of
from fastswa.config import Config
from fastswa.data.features import FeatureSet, feature_dataset
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.errors import RequestError, RunError, installing
from fastswa.layers import AVERAGES, build_config, flatten, merge
from fastswa.methods import method_class, refuse_unused
from fastswa.modelfile import model_bytes, model_of_bytes, save_model
from fastswa.training.budget import DECIDED, Budget
from fastswa.training.memory import train_in_memory
from fastswa.training.quiet import Quiet
from fastswa.training.setup import suited

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import assert_all_finite, check_array, check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise RequestError(
        f"fastswa.Classifier needs scikit-learn 1.6 or newer; {installing('sklearn')} brings it."
    ) from error

_LARGEST_SEED = 2**31 - 1
_NEVER = 10**9
# Sections of settings that are about files.
_IDLE = ("data", "start", "checkpoint", "log", "analysis")


class Classifier(ClassifierMixin, BaseEstimator):
    """Trains on labelled and unlabelled rows together; a label of -1 in `y` stands for none.

    X holds images, (N, H, W) or (N, H, W, C), or feature vectors, (N, features). Images are uint8, other whole numbers
    from 0 to 255, or floats from 0 to 1 or 0 to 255; features have any range and are standardised. None, NaN and empty
    text in `y` count as unlabelled too.

    Parameters
    ----------
    method : what is trained: "fixmatch", "mean-teacher", "supervised", … as on the command line; None takes what
        `fastswa train` takes for images, and "mean-teacher" for feature vectors.
    model : a network by name; None takes "small" for images and "perceptron" for feature vectors.
    minutes : about how long to train, which decides the number of epochs.
    epochs : how often to pass over the rows; neither given, as often as their number suggests.
    unlabelled : the label that stands for none; None where -1 is a class like any other.
    device : "auto", "cpu", "cuda" or "cuda:N".
    settings : any other settings, nested as in a configuration: {"augment": {"flip": True}}.
    random_state : the seed; with a whole number a fit on the CPU repeats bit for bit.

    Attributes
    ----------
    model_ : the trained model, as `fastswa.load` gives it; `save` writes it to a file.
    classes_ : the labels, sorted; `predict_proba` has a column for each.
    n_features_in_ : the numbers in a row of X, and `shape_in_` their shape.
    history_ : the lines of metrics made while training.

    >>> classifier = Classifier(random_state=0).fit(X, y)
    >>> classifier.predict(others)
    """

    def __init__(
        self,
        method: str | None = None,
        *,
        model: str | None = None,
        minutes: float | None = None,
        epochs: int | None = None,
        unlabelled: Any = -1,
        device: str = "auto",
        settings: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.model = model
        self.minutes = minutes
        self.epochs = epochs
        self.unlabelled = unlabelled
        self.device = device
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Classifier:
        """Train on the rows of X, all of them, with the labels that y has."""
        rows = self._rows(X, fitting=True)
        dataset = self._dataset(rows, self._labels(rows, y))
        config = self._config(dataset)
        given = {"evaluation.every", *flatten(self._given())} | (
            {"schedule.epochs"} if self.epochs is not None else set()
        )
        budget = None if self.minutes is None else Budget(self.minutes, given)
        with torch.inference_mode(False), torch.enable_grad():
            self.model_, self.history_ = train_in_memory(config, dataset, Quiet(), budget)
        return self

    def _given(self) -> Mapping[str, Any]:
        """The settings, if they are a mapping."""
        given = {} if self.settings is None else self.settings
        if not isinstance(given, Mapping):
            raise ValueError(f'settings must be a mapping such as {{"augment": {{"flip": True}}}}, not {given!r}.')
        return given

    def _config(self, dataset: Dataset) -> Config:
        given = self._given()
        self._refuse_length(flatten(given))
        for name in flatten(given):
            if name.partition(".")[0] in _IDLE:
                raise ValueError(f"settings: {name} has no effect on rows in memory; leave it out.")
        features = isinstance(dataset.train, FeatureSet)
        named = given.get("method", {})
        if not isinstance(named, Mapping):
            raise ValueError(f'settings: method must be a mapping such as {{"name": "pi"}}, not {named!r}.')
        method = self.method or named.get("name") or ("mean-teacher" if features else None)
        if method is not None:
            refuse_unused(method, named)
            given = merge(given, {"method": {"name": method}})
        device = {"name": self.device, "engine": _engine(self.device)}
        config = build_config(
            # With nothing held out there is nothing to evaluate on the way.
            {"split": {"validation": 0}, "evaluation": {"every": _NEVER}, "checkpoint": {"every": _NEVER}},
            {"device": device},
            {"averaging": AVERAGES},
            feature_settings(dataset, method, self.epochs) if features and method is not None else {},
            {} if self.epochs is None else {"schedule": {"epochs": self.epochs}},
            {} if self.model is None else {"model": {"name": self.model}},
            merge(given, {"seed": self._seed()}),
        )
        if config.schedule.epochs < 1:
            raise ValueError("settings: schedule.epochs must be above zero, not 0.")
        # Rows keep their size, pretrained weights or not.
        config = config.model_copy(update={"data": config.data.model_copy(update={"size": None})})
        if features:
            return config
        return suited(config, dataset)

    def _refuse_length(self, given: Collection[str]) -> None:
        """ValueError where the length is no number above zero, or is said twice, `given` settings included."""
        epochs, minutes = self.epochs, self.minutes
        if epochs is not None and not (isinstance(epochs, Integral) and epochs > 0):
            raise ValueError(f"epochs must be a whole number above zero, not {epochs!r}.")
        if minutes is not None and not (isinstance(minutes, Real) and 0 < minutes < math.inf):
            raise ValueError(f"minutes must be a number above zero, not {minutes!r}.")
        twice = DECIDED if minutes is not None else ("schedule.epochs",)
        said = [name for name, length in (("minutes", minutes), ("epochs", epochs)) if length is not None]
        said += [f"settings: {name}" for name in given if name in twice]
        if len(said) > 1:
            raise ValueError(f"{said[0]} and {said[1]} both say how long to train; give one of them.")

    def predict(self, X: Any) -> np.ndarray:
        """(N,) the likeliest label of each row."""
        probabilities = self.predict_proba(X)
        labels: np.ndarray = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, classes) float32, in the order of `classes_`."""
        check_is_fitted(self, "model_")
        rows = self._rows(X, fitting=False)
        return self.model_.predict(rows if rows.ndim == 2 else to_pixels(rows, self.white_)).probabilities

    def save(self, path: str | Path) -> None:
        """Write the trained model to a .safetensors file, for `fastswa.load`."""
        check_is_fitted(self, "model_")
        try:
            save_model(Path(path), self.model_.network, self.model_.facts)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}.") from error

    def _rows(self, X: Any, *, fitting: bool) -> np.ndarray:
        """X as an array of finite numbers of the shape that was fitted; images keep their type."""
        if (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) < 3:
            rows: np.ndarray = validate_data(self, X, dtype=[np.float64, np.float32], reset=fitting)
        else:
            rows = check_array(X, dtype=None, allow_nd=True, input_name="X", estimator=self)
        if fitting:
            self._begin(rows)
        elif rows.shape[1:] != self.shape_in_ or (rows.dtype.kind == "f") != self._floats:
            kind = "floats" if self._floats else "whole numbers"
            raise ValueError(
                f"X was {kind} of shape (N, {', '.join(map(str, self.shape_in_))}) in fit; "
                f"now it is {rows.dtype} of shape {rows.shape}."
            )
        return rows

    def _begin(self, rows: np.ndarray) -> None:
        """Note what the rows look like."""
        if rows.ndim > 4:
            raise ValueError(f"X must be (N, features), (N, H, W) or (N, H, W, C), not of shape {rows.shape}.")
        if rows.ndim == 4 and rows.shape[1] in (1, 3) and rows.shape[3] > 4:
            raise ValueError(f"images have their channels last, (N, H, W, C), and X has shape {rows.shape}.")
        self.shape_in_ = rows.shape[1:]
        self.n_features_in_ = math.prod(self.shape_in_)
        self._floats = rows.dtype.kind == "f"
        if rows.ndim > 2:
            self.white_ = white_of(rows)
            self.__dict__.pop("feature_names_in_", None)

    def _labels(self, rows: np.ndarray, y: Any) -> np.ndarray:
        """(N,) class numbers, `UNLABELLED` where there is none; sets `classes_`."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        labels = column_or_1d(as_labels(y), warn=True)
        check_consistent_length(rows, labels)
        absent = is_unlabelled(labels, self.unlabelled)
        if isinstance(y, np.ma.MaskedArray):
            absent |= np.ma.getmaskarray(y).ravel()
        if absent.all():
            raise ValueError("y holds no label; at least two classes are needed.")
        # Without the gaps, as None hides that the rest are numbers. An array of objects that are text is kept as one.
        present = of_one_type(labels[~absent], text=not hasattr(y, "__array__"))
        assert_all_finite(present, input_name="y")
        check_classification_targets(present)
        self.classes_, positions = np.unique(present, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds one class only ({self.classes_[0]}); at least two are needed.")
        numbers = np.full(len(labels), UNLABELLED, dtype=np.int64)
        numbers[~absent] = positions
        return numbers

    def _dataset(self, rows: np.ndarray, labels: np.ndarray) -> Dataset:
        names = tuple(str(label) for label in self.classes_)
        if rows.ndim == 2:
            return feature_dataset(rows, labels, names)
        return Dataset(ImageSet(to_pixels(rows, self.white_), labels, names, name="X"), None)

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(_LARGEST_SEED))

    def __getstate__(self) -> dict[str, Any]:
        """For pickles: the network as plain tensors, so that they name no class of torch or of ours but this one."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = model_bytes(self.model_)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            state = {**state, "model_": model_of_bytes(state["model_"])}
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _engine(device: str) -> str:
    """Compiling takes longer than most fits do."""
    return "graph" if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()) else "eager"


def feature_settings(dataset: Dataset, method: str, epochs: int | None) -> dict[str, Any]:
    """Settings for feature vectors that nobody tuned; images get those of `fastswa train`.

    20 sqrt(N) steps in all where no number of epochs is given; noise, weight and heads were chosen on five small sets
    of scikit-learn's, by the accuracy on rows left out.
    """
    rows, reads = dataset.train, method_class(method).settings
    known = int((rows.labels != UNLABELLED).sum())
    rest = len(rows) - known
    labelled, share = (min(50, max(known, 10)), min(50, rest)) if rest else (min(100, known), 0)
    steps = max(rest // share if rest else 0, known // labelled, 1)
    if epochs is None:
        wanted = 20 * math.sqrt(len(rows))
        # Few rows make epochs of several passes: each begins with some work on the host.
        steps = max(steps, int(wanted / 60))
        epochs = math.ceil(wanted / steps)
    length = max(epochs, 1)
    settings: dict[str, Any] = {
        "batch": {"size": labelled + share, "labelled": labelled, "steps": steps},
        "augment": {"translate": 0, "flip": False, "noise": 0.2},
        "model": {"name": "perceptron", "heads": 1},
        "schedule": {"epochs": epochs, "length": length * 5 / 6, "period": length, "cycle": length / 6},
        "evaluation": {"refresh": 16},
    }
    if "epsilon" in reads:
        # 8 for the 3,072 numbers of a CIFAR image, and as much in each number elsewhere.
        settings["method"] = {"weight": 1, "ramp": 0, "epsilon": 8 * math.sqrt(rows.shape[0] / 3072)}
    elif "weight" in reads:
        settings["method"] = {"weight": 10, "ramp": length / 6}
    if "teacher_decay" in reads:
        # A few hundred steps: a teacher further behind would hold the student back.
        settings["method"]["teacher_decay"] = 0.9
    return settings
