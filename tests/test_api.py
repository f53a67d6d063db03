"""fit, resume, load and predict, and that a model file is data, never code."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fastswa
from fastswa.data.sources import load as load_source
from fastswa.errors import RequestError
from fastswa.modelfile import read_facts
from fastswa.training.folder import PREFERENCE, RunFolder
from tiny_runs import STEPS, TINY, StoppingWatcher, assert_identical, checkpoints, metrics, models, tiny, train


def test_fit_takes_a_recipe_or_a_config(finished: Path, tmp_path: Path) -> None:
    run = fastswa.fit("digits-mean-teacher", out=tmp_path / "recipe", settings=TINY)
    assert (run.path, run.finished, len(run.metrics)) == (tmp_path / "recipe", True, 4)
    fastswa.fit(tiny(), out=str(tmp_path / "config"))
    for name in ("recipe", "config"):
        assert_identical(models(tmp_path / name), models(finished))


def test_a_seed_given_to_fit_also_chooses_the_split(tmp_path: Path) -> None:
    """As --seed does, for recipes and for a Config that leaves split.seed open."""
    short: dict[str, Any] = {**TINY, "schedule": {"epochs": 0}}
    del short["seed"]
    base = fastswa.Config.model_validate({**short, "split": {"labels": 50}, "batch": {"steps": STEPS, "labelled": 25}})
    for number, recipe in enumerate(("digits-mean-teacher", base)):
        fastswa.fit(recipe, seed=7, out=tmp_path / str(number), settings=short | {"augment": {"translate": 1}})
        config = RunFolder(tmp_path / str(number)).config()
        assert (config.seed, config.split.seed) == (7, 7)


def test_fit_takes_the_path_of_ones_own_images(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x_train=images, y_train=np.arange(30) % 3)
    run = fastswa.fit(tmp_path / "own.npz", out=tmp_path / "run", settings={"schedule": {"epochs": 0}})
    assert RunFolder(run.path).config().data.source == str(tmp_path / "own.npz")


def test_fit_says_nothing_and_refuses_as_the_command_does(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fastswa.fit("digits-mean-teacher", out=tmp_path / "run", settings=TINY | {"schedule": {"epochs": 0}})
    with pytest.raises(fastswa.RequestError, match="already holds a run"):
        fastswa.fit("digits-mean-teacher", out=finished)
    with pytest.raises(fastswa.RequestError, match="unknown recipe 'digit'; did you mean"):
        fastswa.fit("digit", out=tmp_path / "other")
    with pytest.raises(fastswa.RequestError, match=r"unknown setting schedule\.epoch; did you mean epochs"):
        fastswa.fit("digits-pi", out=tmp_path / "other", settings={"schedule": {"epoch": 3}})
    assert capfd.readouterr() == ("", "")


def test_fit_refuses_to_write_into_no_folder_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="out is empty"):
        fastswa.fit("digits-supervised", out="")
    assert not list(tmp_path.iterdir())


def test_resume_goes_on_and_warns_where_there_is_nothing_to_do(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=5))
    assert fastswa.resume(run).finished
    assert_identical(models(run), models(finished))
    with pytest.warns(UserWarning, match="already reached epoch 4; nothing to do"):
        assert fastswa.resume(run).finished
    assert fastswa.resume(run, settings={"schedule": {"epochs": 5}}).finished
    assert checkpoints(run)[-1] == 15


def test_a_loaded_model_predicts_what_was_evaluated(finished: Path) -> None:
    model = fastswa.load(finished)
    assert isinstance(model, torch.nn.Module)
    assert model.classes == tuple("0123456789")
    assert not model.training
    test = load_source("digits", Path("data")).test
    assert test is not None
    prediction = model.predict(test.pixels)
    last = metrics(finished)[-1]
    assert 100 * np.mean(prediction.labels != test.labels) == pytest.approx(last["error"]["fast_swa"])
    likelihood = np.log(prediction.probabilities[np.arange(len(test)), test.labels].astype(np.float64))
    assert -likelihood.mean() == pytest.approx(last["nll"]["fast_swa"], rel=1e-4)
    assert prediction.names == [model.classes[label] for label in prediction.labels]
    assert prediction.probabilities.dtype == np.float32
    assert np.allclose(prediction.probabilities.sum(axis=1), 1, atol=1e-6)
    normalised = (test.pixels[:5] / 255 - model.facts.mean[0]) / model.facts.std[0]
    logits = model.network(torch.from_numpy(normalised).float()).logits
    assert torch.allclose(model(torch.from_numpy(test.pixels[:5])), logits, atol=1e-4)


def test_images_may_come_in_any_usual_shape(finished: Path) -> None:
    model = fastswa.load(finished)
    test = load_source("digits", Path("data")).test
    assert test is not None
    pixels = test.pixels[:7]
    expected = model.predict(pixels).probabilities
    forms: list[Any] = [
        pixels[:, 0],
        pixels.transpose(0, 2, 3, 1),
        torch.from_numpy(pixels),
        list(pixels[:, 0]),
    ]
    for form in forms:
        assert np.array_equal(model.predict(form).probabilities, expected)
    assert np.allclose(model.predict(pixels, batch=2).probabilities, expected, atol=1e-6)
    nothing = model.predict(pixels[:0])
    assert (nothing.labels.shape, nothing.names, nothing.probabilities.shape) == ((0,), [], (0, 10))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda pixels: pixels / 255, r"torch\.float32 of shape \(5, 1, 8, 8\)"),
        (lambda pixels: pixels.long(), r"torch\.int64 of shape \(5, 1, 8, 8\)"),
        (lambda pixels: pixels[:, 0], r"torch\.uint8 of shape \(5, 8, 8\)"),
        (lambda pixels: pixels.permute(0, 2, 3, 1), r"torch\.uint8 of shape \(5, 8, 8, 1\)"),
        (lambda pixels: pixels.numpy(), "ndarray"),
    ],
)
def test_a_model_called_with_what_cannot_be_meant_refuses_it(
    other: Callable[[torch.Tensor], Any], said: str, finished: Path
) -> None:
    """Floats from 0 to 1, as torchvision's ToTensor gives, would be classified by chance without a word."""
    model, pixels = fastswa.load(finished), torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
    takes = r"^called, the model takes a tensor of uint8 images \(0 to 255, not normalised\) of shape \(N, 1, H, W\), "
    with pytest.raises(fastswa.RequestError, match=rf"{takes}not {said}; `predict` takes arrays too\.$"):
        model(other(pixels))


def test_a_model_is_traced_whatever_the_values_and_the_batch(finished: Path) -> None:
    model = fastswa.load(finished)
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8))
    batch = {"pixels": {0: torch.export.Dim("batch")}}
    for strict in (False, True):
        program = torch.export.export(model, (torch.zeros_like(pixels[:2]),), dynamic_shapes=batch, strict=strict)
        assert torch.allclose(program.module()(pixels), model(pixels), atol=1e-5)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(pixels), model(pixels), atol=1e-5)


def test_images_of_another_kind_are_refused(finished: Path) -> None:
    model = fastswa.load(finished)
    with pytest.raises(fastswa.RequestError, match=r"^images must be uint8 \(0 to 255\), not float64\.$"):
        model.predict(np.zeros((2, 8, 8)))
    with pytest.raises(fastswa.RequestError) as caught:
        model.predict(np.zeros((2, 9, 8), np.uint8))
    assert str(caught.value) == (
        "the model takes images of 8x8x1, not an array of shape (2, 9, 8) (a list of images may have any size)."
    )
    with pytest.raises(fastswa.RequestError, match=r"not an array of shape \(8, 8\)"):
        model.predict(np.zeros((8, 8), np.uint8))
    with pytest.raises(fastswa.RequestError, match=r"an image is .* not an array of shape \(5, 9, 8\)"):
        model.predict([np.zeros((8, 8), np.uint8), np.zeros((5, 9, 8), np.uint8)])


def test_predicting_leaves_a_model_in_its_mode(finished: Path) -> None:
    model = fastswa.load(finished).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.predict(np.zeros((3, 8, 8), np.uint8))
    assert model.training
    assert_identical(before, dict(model.state_dict()))


@pytest.mark.parametrize("network", ["student", "teacher", "swa", "fast_swa", "ema"])
def test_every_network_of_a_run_can_be_loaded(network: str, finished: Path) -> None:
    file = finished / "models" / f"{network}.safetensors"
    model = fastswa.load(file)
    assert (model.facts.network, model.facts.epoch) == (network, 4.0)
    assert_identical(dict(model.network.state_dict()), load_file(file))


def test_the_model_to_use_is_named(finished: Path) -> None:
    assert PREFERENCE == ("fast-swa", "swa", "teacher", "ema", "student", "last")
    assert fastswa.load(finished).facts.network == "fast_swa"
    assert_identical(load_file(finished / "model.safetensors"), load_file(finished / "models/fast_swa.safetensors"))


def test_an_unfinished_run_has_no_model_yet(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=5))
    with pytest.raises(fastswa.RequestError) as caught:
        fastswa.load(run)
    assert str(caught.value) == f"{run} has no model yet; finish it with `fastswa resume {run}`."


class Bomb:
    """A pickle that would make a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return os.mkdir, (self.folder,)


def described(**changes: Any) -> dict[str, str]:
    """Metadata of a model file with some facts replaced."""
    facts = {
        "architecture": "small",
        "classes": ["0", "1"],
        "shape": [1, 8, 8],
        "mean": [0.5],
        "std": [0.2],
        "heads": 1,
        "options": {"width": 4},
    }
    return {"fastswa": json.dumps(facts | changes)}


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"

    def refused() -> str:
        with pytest.raises(fastswa.RequestError) as caught:
            fastswa.load(file)
        assert str(caught.value).startswith(f"{file} ")
        return str(caught.value).removeprefix(f"{file} ")

    with pytest.raises(fastswa.RequestError, match="there is no model file"):
        fastswa.load(file)
    file.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    assert refused() == "is not a whole safetensors file."
    torch.save({"weight": torch.ones(2)}, file)
    assert refused() == "is not a whole safetensors file."
    assert not (tmp_path / "ran").exists()
    weights = {"weight": torch.ones(2)}
    unknown = "was not written by this fastswa: its metadata say nothing of a network."
    for metadata in (None, {"fastswa": "not json"}, {"fastswa": "[]"}, {"fastswa": "{}"}, described(colour="red")):
        save_file(weights, file, metadata=metadata)
        assert refused() == unknown
    save_file(weights, file, metadata=described())
    assert refused() == "does not fit its own architecture small."
    save_file(weights, file, metadata=described(architecture="os.system"))
    with pytest.raises(fastswa.RequestError, match=r"unknown model 'os\.system'"):
        fastswa.load(file)


def test_a_garbled_or_cut_model_is_refused(finished: Path, tmp_path: Path) -> None:
    whole = (finished / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    file = tmp_path / "model.safetensors"
    broken = [whole[:length] for length in (0, 7, 8, 100, header, len(whole) // 2, len(whole) - 1)]
    broken += [whole[:k] + bytes([whole[k] ^ 0xFF]) + whole[k + 1 :] for k in (0, 7, 8, 100, header - 1)]
    for content in broken:
        file.write_bytes(content)
        with pytest.raises(fastswa.RequestError) as caught:
            fastswa.load(file)
        assert str(caught.value) == f"{file} is not a whole safetensors file."


def test_a_model_says_what_it_was_trained_on(finished: Path) -> None:
    facts = read_facts(finished / "model.safetensors")
    train_images = load_source("digits", Path("data")).train
    mean, std = train_images.channel_statistics()
    assert (facts.shape, facts.heads, facts.classes) == ((1, 8, 8), 2, train_images.classes)
    assert (facts.mean, facts.std) == (pytest.approx(mean), pytest.approx(std))


def test_the_public_names_are_there() -> None:
    # Classifier needs scikit-learn, so that `from fastswa import *` leaves it out.
    assert {*fastswa.__all__, "Classifier", "__version__"} == set(dir(fastswa))
    assert all(getattr(fastswa, name) is not None for name in fastswa.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fti'"):
        fastswa.fti  # noqa: B018
