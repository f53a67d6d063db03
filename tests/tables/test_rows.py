"""The generated recipes: the committed files, the settings of the paper's experiments, and how far they train."""

from __future__ import annotations

import math
import tomllib
from importlib import resources

import pytest

from fastswa.config import Config
from fastswa.layers import build_config, recipe_layer, recipe_names, recipe_text
from fastswa.methods.vat import COARSE
from fastswa.tables.domains import domain_files, domain_runs
from fastswa.tables.published import all_published, published
from fastswa.tables.rows import TABLES, all_rows, generated, recipe_files, row_of

ROWS = list(all_rows())
TINY = [
    f"cifar100-{network}-{method}-50k-tiny-{count}{schedule}"
    for network, method, schedule in (
        ("cnn", "pi", ""),
        ("cnn", "mean-teacher", ""),
        ("cnn", "temporal-ensembling", ""),
        ("shake", "mean-teacher", "-short"),
    )
    for count in ("237k", "500k")
]

# Batch, labelled images in it, learning rate, weight decay, (l, l0, c), (start, every) of SWA and fast-SWA.
SHORT = ((180, 210, 30), (180, 30), (150, 3))
LONG = ((1500, 1800, 200), (1500, 200), (1300, 20))
PAPER = {
    "cifar10-cnn": (100, 50, 0.1, 1e-4, SHORT),
    "cifar10-shake-short": (128, 31, 0.05, 2e-4, SHORT),
    "cifar10-shake-long": (128, 31, 0.05, 2e-4, LONG),
    "cifar100-cnn": (128, 31, 0.1, 2e-4, SHORT),
    "cifar100-shake-short": (128, 31, 0.1, 2e-4, SHORT),
}


def config_of(name: str) -> Config:
    return build_config(recipe_layer(name))


def test_the_committed_files_are_the_generated_ones() -> None:
    folder = resources.files("fastswa") / "recipes"
    recipes = {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".toml")}
    committed = {name: text for name, text in recipes.items() if generated(text)}
    assert committed == recipe_files() | domain_files(), "run `python benchmarks/make_recipes.py`"


def test_there_is_a_recipe_for_every_row() -> None:
    assert len(ROWS) == 64
    cifar = {name for name in recipe_names() if name.startswith("cifar") and name not in domain_runs()}
    assert set(ROWS) == {name for name in cifar if generated(recipe_text(name))}
    assert {name for name in cifar - set(ROWS) if "fixmatch" not in name} == set()
    assert {name for name, row in all_rows().items() if row.extra} == set(TINY)
    assert [cell for cell in all_published() if cell.table in TABLES and row_of(cell) is None] == []


@pytest.mark.parametrize("name", ROWS)
def test_a_recipe_has_the_settings_of_its_experiment(name: str) -> None:
    row, config = all_rows()[name], config_of(name)
    size, labelled, lr, weight_decay, (schedule, swa, fast_swa) = PAPER[row.table]
    assert (config.data.source, config.model.name) == (
        row.table.split("-")[0],
        "cnn13" if "cnn" in row.table else "shake-shake-26-2x96d",
    )
    assert config.split.labels == row.labels
    if row.extra:
        labelled = 64 if row.table == "cifar100-cnn" else 31
    elif row.labels == 50_000:
        labelled = size
    assert (config.batch.size, config.batch.labelled) == (size, labelled)
    assert (config.optimiser.lr, config.optimiser.weight_decay) == (lr, weight_decay)
    assert (config.optimiser.momentum, config.optimiser.nesterov) == (0.9, True)
    assert (config.schedule.length, config.schedule.period, config.schedule.cycle) == schedule
    averages = config.averaging
    assert (averages["swa"].start, averages["swa"].every) == swa
    assert (averages["fast_swa"].start, averages["fast_swa"].every) == fast_swa
    assert config.method.name == row.method
    if row.method in ("pi", "mean-teacher"):
        assert (config.method.weight, config.method.ramp, config.method.tie) == (100, 5, 0.01)
        assert (config.method.divergence, config.model.heads, config.method.teacher_decay) == ("squared", 2, 0.97)
    assert (config.augment.translate, config.augment.flip, config.augment.noise) == (4, True, 0)


@pytest.mark.parametrize("name", ROWS)
def test_every_published_epoch_is_evaluated(name: str) -> None:
    row, config = all_rows()[name], config_of(name)
    for cell in row.cells:
        assert (cell.epoch or row.experiment.length) % config.evaluation.every == 0
    assert config.schedule.epochs >= row.experiment.length


@pytest.mark.parametrize(
    ("name", "epochs"),
    [
        ("cifar10-cnn-mean-teacher-4k", 180),
        ("cifar10-cnn-vat-entmin-4k", 180),
        ("cifar10-cnn-mean-teacher-1k", 240),
        ("cifar10-cnn-pi-50k", 240),
        ("cifar10-cnn-supervised-1k", 180),
        ("cifar10-shake-pi-4k-short", 240),
        ("cifar10-shake-mean-teacher-10k-long", 1700),
        ("cifar10-shake-supervised-50k-long", 1500),
        ("cifar100-cnn-mean-teacher-10k", 240),
        ("cifar100-shake-mean-teacher-50k-short", 300),
    ],
)
def test_how_far_recipes_train(name: str, epochs: int) -> None:
    assert config_of(name).schedule.epochs == epochs


def test_the_4k_recipes_keep_the_settings_they_came_with() -> None:
    layers = {name: recipe_layer(name) for name in ROWS if name.startswith("cifar10-cnn") and name.endswith("-4k")}
    assert len(layers) == 10
    vat = {"weight": 1, "ramp": 0, "epsilon": 4, "xi": 10, "own_dropout": True, "correlation": 0.92}
    del layers["cifar10-cnn-mean-teacher-often-4k"]
    methods = {name: layer["method"] for name, layer in layers.items()}
    assert methods == {
        "cifar10-cnn-mean-teacher-4k": {"name": "mean-teacher"},
        "cifar10-cnn-mean-teacher-swa-teacher-4k": {"name": "mean-teacher", "teacher": "swa", "teacher_start": 150},
        "cifar10-cnn-pi-4k": {"name": "pi"},
        "cifar10-cnn-supervised-4k": {"name": "supervised"},
        "cifar10-cnn-sntg-4k": {"name": "sntg", "weight": 30, "ramp": 80, "neighbours": 0.1, "margin": 1},
        "cifar10-cnn-vadd-4k": {"name": "vadd", "weight": 100, "ramp": 5, "delta": 0.05},
        "cifar10-cnn-temporal-ensembling-4k": {"name": "temporal-ensembling", "weight": 30, "ramp": 80},
        "cifar10-cnn-vat-4k": {"name": "vat", **vat},
        "cifar10-cnn-vat-entmin-4k": {"name": "vat-entmin", **vat, "entropy": 0.3},
    }
    # Or its directions would be looked for in 32 bits, at three times the cost of a step.
    assert vat["xi"] >= COARSE * math.sqrt(3 * 32 * 32)
    heads = {
        name.removeprefix("cifar10-cnn-").removesuffix("-4k"): layer["model"]["heads"] for name, layer in layers.items()
    }
    one_head = {method for method, number in heads.items() if number == 1}
    assert one_head == {"temporal-ensembling", "vat", "vat-entmin", "vadd", "sntg"}
    assert [name for name, layer in layers.items() if "ema" in layer["averaging"]] == ["cifar10-cnn-pi-4k"]


def test_extra_images_are_at_most_100k_an_epoch_from_a_draw_or_a_list() -> None:
    """The appendix: at most 100k unlabelled images an epoch; 500k drawn at random, 237k by class names."""
    for name in TINY:
        data = config_of(name).data
        assert (data.extra, data.extra_per_epoch) == ("tiny_images.bin", 100_000)
        chosen = (500_000, None) if "500k" in name else (None, "tiny-237k.txt")
        assert (data.extra_images, data.extra_file) == chosen
        assert "withdrawn" in " ".join(recipe_files()[f"{name}.toml"].replace("\n# ", " ").split())


def test_one_recipe_averages_more_and_more_often() -> None:
    config = config_of("cifar10-cnn-mean-teacher-often-4k")
    every = {name: (average.start, average.every) for name, average in config.averaging.items()}
    assert every == {
        "swa": (180, 30),
        "fast_swa": (150, 3),
        "every_epoch": (150, 1),
        "every_quarter": (150, 0.25),
        "every_step": (150, 0),
    }
    assert config.schedule.epochs == 240
    plain = config_of("cifar10-cnn-mean-teacher-4k")
    free = {"averaging": {}, "schedule": plain.schedule, "evaluation": None, "checkpoint": None}
    assert config.model_copy(update=free) == plain.model_copy(update=free)


def test_the_header_names_the_row_and_its_figures() -> None:
    text = recipe_files()["cifar10-cnn-pi-10k.toml"]
    comment = " ".join(line[2:] for line in text.splitlines() if line.startswith("#"))
    assert text.startswith("# CIFAR-10, 13-layer CNN, 10,000 labels: Pi model, with its EMA evaluated (Pi EMA), short")
    for figure in (
        "9.11 ± 0.21 (180)",
        "EMA 9.06 ± 0.15 (180)",
        "fast-SWA 8.83 ± 0.32 (180)",
        "SWA 8.58 ± 0.41 (240)",
        "fast-SWA 7.28 ± 0.23 (1200)",
        "to reach 480, 1200: `fastswa resume RUN --epochs 1200`",
    ):
        assert figure in comment
    for row_text in recipe_files().values():
        assert all(len(line) <= 120 for line in row_text.splitlines())
        assert tomllib.loads(row_text)
    assert "Quoted there: 2.86 (Gastaldi 2017)." in recipe_files()["cifar10-shake-supervised-50k-long.toml"]


def test_every_published_cell_of_a_known_method_belongs_to_one_row() -> None:
    for table in TABLES:
        cells = [cell for cell in published(table) if row_of(cell) is not None]
        covered = [cell for row in all_rows().values() if row.table == table for cell in row.cells]
        assert sorted(map(repr, covered)) == sorted(map(repr, cells))
