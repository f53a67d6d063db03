"""What `fastswa.Classifier` makes of feature vectors with few labels, beside scikit-learn's own ways to use the rest.

    python benchmarks/classifier.py [--seeds 5] [--labels 5] > results/classifier.txt

Five small sets of scikit-learn's. A seed draws 70% of the rows to train on, of which the first `labels` of each class
keep their label; accuracy is on the other 30%. Defaults everywhere. The Classifier's own defaults were chosen on the
same sets with the seeds 0 to 3; those here begin at 100.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn import __version__ as sklearn_version
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

import fastswa


def sets() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for name in ("digits", "wine", "breast_cancer"):
        yield (name, *getattr(datasets, f"load_{name}")(return_X_y=True))
    yield ("moons", *datasets.make_moons(1000, noise=0.1, random_state=0))
    yield ("synthetic", *datasets.make_classification(1500, 20, n_informative=8, n_classes=4, random_state=1))


def split(X: np.ndarray, y: np.ndarray, seed: int, labels: int) -> tuple[np.ndarray, ...]:
    order = np.random.RandomState(seed).permutation(len(y))
    train, rest = order[: int(0.7 * len(y))], order[int(0.7 * len(y)) :]
    few = np.full(len(train), -1)
    for label in np.unique(y):
        members = np.flatnonzero(y[train] == label)[:labels]
        few[members] = label
    return X[train], few, X[rest], y[rest]


class LabelledOnly:
    """A supervised estimator that leaves the unlabelled rows aside."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: np.ndarray, y: np.ndarray) -> Any:
        return self.estimator.fit(X[y >= 0], y[y >= 0])


WAYS: dict[str, Callable[[int], Any]] = {
    "Classifier()": lambda seed: fastswa.Classifier(random_state=seed),
    'Classifier("supervised")': lambda seed: fastswa.Classifier("supervised", random_state=seed),
    "LogisticRegression": lambda seed: LabelledOnly(make_pipeline(StandardScaler(), LogisticRegression())),
    "SelfTraining(LogisticRegression)": lambda seed: make_pipeline(
        StandardScaler(), SelfTrainingClassifier(LogisticRegression())
    ),
    "LabelSpreading": lambda seed: make_pipeline(StandardScaler(), LabelSpreading()),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--labels", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    names = [name for name, _, _ in sets()]
    print(f"accuracy, %, mean over {arguments.seeds} seeds; {arguments.labels} labels a class;")
    print(f"fastswa {fastswa.__version__}, scikit-learn {sklearn_version}, torch {torch.__version__}\n")
    print(f"{'':<34}" + "".join(f"{name:>15}" for name in [*names, "CPU s a fit"]))
    for way, make in WAYS.items():
        row, began, fits = [], time.process_time(), 0
        for _, X, y in sets():
            scores = []
            for seed in range(100, 100 + arguments.seeds):
                train, few, rest, truth = split(X, y, seed, arguments.labels)
                scores.append(make(seed).fit(train, few).score(rest, truth))
                fits += 1
            row.append(100 * float(np.mean(scores)))
        seconds = (time.process_time() - began) / fits
        print(f"{way:<34}" + "".join(f"{value:>15.1f}" for value in row) + f"{seconds:>15.2f}", flush=True)


if __name__ == "__main__":
    main()
