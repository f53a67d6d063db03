"""The examples: they run, averages are the means that they claim to be, and an exported model needs nothing else."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from conftest import Command
from fastswa.data.sources.digits import load_digits

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example as a module; it may import its neighbours."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


def test_the_plain_loop_prints_three_networks() -> None:
    words = [sys.executable, str(EXAMPLES / "plain_loop.py"), "--epochs", "12", "--labels", "200"]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [re.fullmatch(r"(.+?) +([\d.]+)% wrong", line) for line in answer.stdout.splitlines()]
    found = {line[1]: float(line[2]) for line in lines if line is not None}
    # Cycles of two epochs after the eighth; fast-SWA begins a cycle earlier and takes each of the four steps an epoch.
    assert list(found) == ["last iterate", "SWA of 3", "fast-SWA of 25"]
    assert max(found.values()) < 50


def test_a_method_of_ones_own_trains_on_its_own_terms(tmp_path: Path) -> None:
    def own(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, str(EXAMPLES / "own_method.py"), "train", "digits-pi", "--method", "minimum-entropy"]
        return subprocess.run([*program, *words], capture_output=True, text=True, check=False, cwd=tmp_path)

    answer = own("--batch.steps", "3", "--epochs", "1", "--model.width", "8", "--no-report", "--out", "run")
    assert answer.returncode == 0, answer.stderr
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert line["loss"].keys() == {"classification", "entropy"}
    assert line["loss"]["entropy"] > 0
    refused = own("--method.tie", "1").stderr
    assert refused == "fastswa: method.tie has no effect on the method minimum-entropy; leave it out.\n"


def pictures(folder: Path) -> None:
    """Forty digits as PNG files of several sizes, shapes, colours and depths, some of them partly transparent."""
    digits = load_digits().test
    assert digits is not None
    folder.mkdir()
    for number, pixels in enumerate(digits.pixels[:40, 0]):
        image = Image.fromarray(pixels).resize([(8, 8), (20, 20), (13, 31), (9, 8)][number % 4])
        kind = ("L", "RGB", "I;16", "RGBA", "LA", "P", "I", "CMYK")[number // 4 % 8]
        if kind.startswith("I"):
            wide = np.asarray(image).astype(np.uint16) * 257
            image = Image.fromarray(wide)
        elif kind in ("RGBA", "LA"):
            image = image.convert(kind)
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        else:
            image = image.convert(kind)
        image.save(folder / (f"{number:02}.jpg" if kind == "CMYK" else f"{number:02}.png"))


def scatter(folder: Path) -> None:
    """Some pictures into folders that sort before, between and after files; beside them what `predict` passes over."""
    for number, name in enumerate(("00", "05-more", "zz/inner", "zz", "12.png.d")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.png").rename(folder / name / f"{number:02}.png")
    (folder / "05.png").rename(folder / "05.PNG")
    (folder / "zz" / "again").symlink_to(folder, target_is_directory=True)
    (folder / ".hidden").mkdir()
    for hidden in ("._06.png", ".hidden/06.png"):
        (folder / hidden).write_bytes(b"nothing")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_an_exported_model_says_alone_what_fastswa_says(
    layout: str, finished: Path, command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    pictures(tmp_path / "images")
    scatter(tmp_path / "images")
    (tmp_path / "images" / "damaged.png").write_bytes(b"nothing")
    assert command("export", finished, "--layout", layout, "--out", tmp_path / "model.onnx").code == 0
    words = [sys.executable, str(EXAMPLES / "run_onnx.py"), str(tmp_path / "model.onnx"), str(tmp_path / "images")]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    assert answer.stderr.startswith(f"{tmp_path}/images/damaged.png is left out: ")
    head, *alone = csv.reader(answer.stdout.splitlines())
    out = tmp_path / "predicted.csv"
    assert command("predict", finished, tmp_path / "images", "--top-k", "1", "--out", out).code == 0
    ours = [row for row in csv.reader(out.read_text().splitlines()) if not row[3]]  # neither the head nor the damaged
    assert head == ["path", "label", "confidence"]
    assert len(ours) == 40
    assert [row[:2] for row in alone] == [row[:2] for row in ours]
    assert [float(row[2]) for row in alone] == pytest.approx([float(row[2]) for row in ours], abs=1e-5)


def test_what_fastswa_refuses_an_exported_model_refuses_alone(finished: Path, command: Command, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    images = tmp_path / "images"
    images.mkdir()
    digits = load_digits().test
    assert digits is not None
    grey = Image.fromarray(digits.pixels[0, 0]).resize((20, 20))
    grey.save(images / "0.png")
    wide = np.asarray(grey).astype(np.uint16) * 257
    Image.fromarray(wide).save(images / "1.png", transparency=int(wide[10, 10]))
    grey.save(images / "gif.jpg", format="GIF")
    grey.save(images / "tiff.png", format="TIFF")
    Image.new("1", (9000, 8000)).save(images / "large.png")
    (images / "gone.png").symlink_to("nowhere.png")
    os.mkfifo(images / "pipe.png")
    assert command("export", finished, "--out", tmp_path / "model.onnx").code == 0
    words = [sys.executable, str(EXAMPLES / "run_onnx.py"), str(tmp_path / "model.onnx"), str(images)]
    answer = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    out = tmp_path / "predicted.csv"
    assert command("predict", finished, images, "--top-k", "1", "--out", out).code == 0
    _, *ours = csv.reader(out.read_text().splitlines())
    refused = [row[0] for row in ours if row[3]]
    assert [Path(name).name for name in refused] == ["gif.jpg", "gone.png", "large.png", "tiff.png"]
    assert [line.partition(" is left out: ")[0] for line in answer.stderr.splitlines()] == refused
    alone = [(name, label, float(sure)) for name, label, sure in list(csv.reader(answer.stdout.splitlines()))[1:]]
    assert alone == [(row[0], row[1], pytest.approx(float(row[2]), abs=1e-5)) for row in ours if not row[3]]
    assert [Path(name).name for name, _, _ in alone] == ["0.png", "1.png"]


def test_a_reader_that_has_enough_ends_it_quietly(finished: Path, command: Command, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pictures(tmp_path / "images")
    assert command("export", finished, "--out", tmp_path / "model.onnx").code == 0
    words = [sys.executable, str(EXAMPLES / "run_onnx.py"), str(tmp_path / "model.onnx"), str(tmp_path / "images")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 1


# Lightning warns of few workers, of loggers that are not there, and uses what torch has deprecated.
lightning = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("lightning.pytorch", exc_type=ImportError)
    return example("lightning_callback", monkeypatch)


def fitted(callbacks: Any, *extra: Any, epochs: int, **options: Any) -> Any:
    """A module trained on 100 digits in two batches an epoch, in the same order each time."""
    import lightning.pytorch as pl

    torch.manual_seed(0)
    module = callbacks.Digits()
    loader = DataLoader(callbacks.digits(100)[0], batch_size=50)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    checkpoint = options.pop("ckpt_path", None)
    trainer = pl.Trainer(
        max_epochs=epochs, callbacks=list(extra), **{"enable_checkpointing": False, **quiet, **options}
    )
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer, module, loader


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@lightning
def test_the_callback_averages_the_iterates_and_leaves_the_rate_alone(callbacks: Any) -> None:
    import lightning.pytorch as pl

    seen: list[tuple[float, Tensor, float]] = []

    class Recorder(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            epoch = trainer.current_epoch + (batch_idx + 1) / 2
            seen.append((epoch, weights(pl_module), trainer.optimizers[0].param_groups[0]["lr"]))

    average = callbacks.FastSWA(start=1.5, every=0.5)
    _, module, loader = fitted(callbacks, average, Recorder(), epochs=4)
    due = [iterate for epoch, iterate, _ in seen if epoch >= 1.5]
    assert average.averaged.count == len(due) == 6
    assert torch.allclose(weights(average.averaged.module), torch.stack(due).mean(dim=0), atol=1e-6)
    assert {rate for _, _, rate in seen} == {0.1}
    assert torch.equal(weights(module), seen[-1][1])

    first = average.averaged.module.model[0]
    activations = [first(x) for x, _ in loader]
    norm = average.averaged.module.model[1]
    means = torch.stack([a.mean(dim=(0, 2, 3)) for a in activations]).mean(dim=0)
    variances = torch.stack([a.var(dim=(0, 2, 3)) for a in activations]).mean(dim=0)
    assert torch.allclose(norm.running_mean, means, atol=1e-5)
    assert torch.allclose(norm.running_var, variances, rtol=1e-4)
    assert not norm.training


@lightning
def test_the_average_is_saved_and_goes_on(callbacks: Any, tmp_path: Path) -> None:
    whole = callbacks.FastSWA(start=1, every=0.5)
    _, module, _ = fitted(callbacks, whole, epochs=4)
    half = callbacks.FastSWA(start=1, every=0.5)
    trainer, _, _ = fitted(callbacks, half, epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    rest = callbacks.FastSWA(start=1, every=0.5)
    _, resumed, _ = fitted(callbacks, rest, epochs=4, ckpt_path=tmp_path / "half.ckpt")
    assert torch.equal(weights(resumed), weights(module))
    assert rest.averaged.count == whole.averaged.count
    assert torch.allclose(weights(rest.averaged.module), weights(whole.averaged.module), atol=1e-6)


@lightning
def test_the_rate_is_the_papers(callbacks: Any) -> None:
    import lightning.pytorch as pl

    from fastswa.schedule import cyclic_cosine

    rates: list[float] = []

    class Recorder(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    fitted(callbacks, callbacks.CyclicRate(length=2, period=3, cycle=1), Recorder(), epochs=4)
    assert rates == pytest.approx(
        [0.1 * cyclic_cosine(step / 2, length=2, period=3, cycle=1) for step in range(8)], rel=1e-6
    )


@lightning
def test_the_lightning_example_runs(callbacks: Any) -> None:
    found = callbacks.train(epochs=6, labels=100, accelerator="cpu")
    assert list(found) == ["last iterate", "fast-SWA of 7"]


@lightning
def test_a_lightning_checkpoint_can_be_averaged(callbacks: Any, tmp_path: Path) -> None:
    """With `fastswa average`, which reads it without running code."""
    from fastswa.weights import read_weights

    trainer, module, _ = fitted(callbacks, callbacks.FastSWA(start=0), epochs=1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    read = read_weights(str(tmp_path / "one.ckpt"), None, pytest.fail).tensors
    assert read.keys() == module.state_dict().keys()
    assert torch.equal(read["model.0.weight"], module.model[0].weight)
