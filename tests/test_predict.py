"""`fastswa predict` and `TrainedModel.predict`: every form in and out gives what the network says, a bad file a row."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import fastswa
from conftest import Command
from fastswa.data.sources import load as load_source
from fastswa.modelfile import Prediction, TrainedModel, metadata_of, read_facts, save_model, save_temperature
from fastswa.predict import Columns, Row, Sheet, predicted
from tiny_runs import tiny, train

CLASSES = tuple("0123456789")


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    """(30, 8, 8) test digits."""
    test = load_source("digits", Path("data")).test
    assert test is not None
    return np.ascontiguousarray(test.pixels[:30, 0])


@pytest.fixture(scope="module")
def expected(finished: Path, digits: np.ndarray) -> np.ndarray:
    """Their probabilities, (30, 10), by the network itself."""
    model = fastswa.load(finished)
    pixels = torch.from_numpy(digits)[:, None].double() / 255
    with torch.no_grad():
        inputs = ((pixels - model.facts.mean[0]) / model.facts.std[0]).float()
        return model.network(inputs).logits.softmax(dim=1).numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, digits: np.ndarray) -> Path:
    """The digits as files, nested."""
    root = tmp_path_factory.mktemp("digits")
    for number, digit in enumerate(digits):
        (root / "deep" / str(number // 10)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(digit).save(root / "deep" / str(number // 10) / f"{number:02}.png")
    return root


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A data folder of coloured images of many sizes, and a run trained on it."""
    root = tmp_path_factory.mktemp("own")
    random = np.random.default_rng(0)
    for number in range(40):
        part = ("labeled/a", "labeled/b", "unlabeled/x", "unlabeled", "test/a")[number % 5]
        (root / "images" / part).mkdir(parents=True, exist_ok=True)
        picture = random.integers(0, 256, (9 + number % 7, 12 + number % 3, 3), np.uint8)
        name = f"{number:02}.{('png', 'jpg', 'webp')[number % 3]}"
        Image.fromarray(picture).save(root / "images" / part / name)
    batch = {"size": 12, "labelled": 6, "steps": 2}
    settings = {
        "data": {"source": str(root / "images"), "size": 12},
        "batch": batch,
        "split": {"labels": None, "validation": 3},
    }
    train(tiny(settings, {"schedule": {"epochs": 1}}, recipe="digits-mean-teacher"), root / "run")
    return root / "images", root / "run"


def table(text: str, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def probabilities(rows: list[dict[str, str]]) -> np.ndarray:
    return np.array([[float(row[f"p_{name}"]) for name in CLASSES] for row in rows])


def test_a_folder_becomes_a_table(command: Command, finished: Path, folder: Path, expected: np.ndarray) -> None:
    out = folder.parent / "new" / "out.csv"
    answer = command("predict", finished, folder, "--out", out)
    assert answer == (0, f"{out}: 30 images.\n", "")
    rows = table(out.read_text())
    assert list(rows[0]) == ["path", "label", "confidence", *(f"p_{name}" for name in CLASSES), "error"]
    assert [row["path"] for row in rows] == [str(file) for file in sorted(folder.rglob("*.png"))]
    np.testing.assert_allclose(probabilities(rows), expected, rtol=2e-5)
    assert [row["label"] for row in rows] == [CLASSES[k] for k in expected.argmax(axis=1)]
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], expected.max(axis=1), rtol=2e-5)
    assert {row["error"] for row in rows} == {""}
    assert sorted(out.parent.iterdir()) == [out]


def test_every_kind_of_target_says_the_same(
    command: Command, finished: Path, folder: Path, digits: np.ndarray, expected: np.ndarray, tmp_path: Path
) -> None:
    files = sorted(folder.rglob("*.png"))
    manifest, arrays = tmp_path / "list.tsv", tmp_path / "a.npz"
    manifest.write_text("label\tpath\n" + "".join(f"x\t{file}\n" for file in files))
    np.savez(arrays, x_test=digits)
    everything = [*files[:5], folder / "deep/0", manifest, arrays]
    several = np.concatenate([expected[:5], expected[:10], expected, expected])
    for targets, wanted in ((files, expected), ([manifest], expected), ([arrays], expected), (everything, several)):
        answer = command("predict", finished, *targets)
        assert (answer.code, answer.err) == (0, "")
        np.testing.assert_allclose(probabilities(table(answer.out)), wanted, rtol=2e-5)


def test_a_bad_file_is_a_row(command: Command, finished: Path, folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad, really.png"
    bad.write_bytes(b"nothing")
    good = sorted(folder.rglob("*.png"))[:2]
    answer = command("predict", finished, good[0], bad, good[1])
    assert answer.code == 0
    assert answer.err == "fastswa: 1 of 3 images could not be read; the column error says why.\n"
    rows = table(answer.out)
    assert [row["path"] for row in rows] == [str(good[0]), str(bad), str(good[1])]
    assert rows[1].pop("path") == str(bad)
    reason = f"{bad} is not a JPEG, PNG, WebP or BMP image, or its beginning is damaged."
    assert rows[1].pop("error") == reason
    assert set(rows[1].values()) == {""}
    alone = command("predict", finished, good[1])
    assert alone.out.splitlines()[1] == answer.out.splitlines()[3]
    answer = command("predict", finished, bad, good[0], "--json", "--top-k", "1")
    first, second = map(json.loads, answer.out.splitlines())
    assert first == {"path": str(bad), "label": None, "confidence": None, "error": reason}
    assert (second["path"], second["error"]) == (str(good[0]), None)
    answer = command("predict", finished, bad, "--out", tmp_path / "out.csv", "--json")
    assert json.loads(answer.out) == {"out": str(tmp_path / "out.csv"), "images": 1, "failed": 1}


def test_the_likeliest_classes(command: Command, finished: Path, folder: Path, expected: np.ndarray) -> None:
    out = folder.parent / "top.tsv"
    assert command("predict", finished, folder, "--out", out, "--top-k", "3").code == 0
    rows = table(out.read_text(), "\t")
    best = ["label", "confidence", "label_2", "confidence_2", "label_3", "confidence_3"]
    assert list(rows[0]) == ["path", *best, "error"]
    order = np.argsort(-expected, axis=1)
    for place, name in enumerate(("", "_2", "_3")):
        assert [row[f"label{name}"] for row in rows] == [CLASSES[k] for k in order[:, place]]
        wanted = np.take_along_axis(expected, order[:, place : place + 1], axis=1)[:, 0]
        np.testing.assert_allclose([float(row[f"confidence{name}"]) for row in rows], wanted, rtol=2e-5)
    answer = command("predict", finished, folder, "--top-k", "1")
    assert answer.out.splitlines()[0] == "path,label,confidence,error"
    answer = command("predict", finished, folder, "--top-k", "99", "--probabilities")
    assert len(answer.out.splitlines()[0].split(",")) == 1 + 2 * 10 + 10 + 1
    out = folder.parent / "top.jsonl"
    assert command("predict", finished, folder, "--out", out, "--top-k", "2", "--probabilities").code == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [[CLASSES.index(name) for name, _ in record["top"]] for record in records] == order[:, :2].tolist()
    np.testing.assert_allclose([[r["probabilities"][c] for c in CLASSES] for r in records], expected, rtol=2e-5)
    assert [record["confidence"] for record in records] == [record["top"][0][1] for record in records]


def test_other_networks_and_model_files(command: Command, finished: Path, folder: Path) -> None:
    file = finished / "models" / "student.safetensors"
    by_name = command("predict", finished, folder, "--network", "student").out
    assert by_name == command("predict", file, folder).out
    assert by_name != command("predict", finished, folder).out


def test_images_are_read_as_they_were_for_training(command: Command, own: tuple[Path, Path]) -> None:
    """Many sizes and formats: the run's own prepared images and their files give the same figures."""
    images, run = own
    for part, place, count in (("unlabelled", "unlabeled", 16), ("test", "test", 8)):
        prepared = command("predict", run, "--part", part)
        assert (prepared.code, prepared.err) == (0, "")
        head, *rows = prepared.out.splitlines()
        assert len(rows) == count
        for targets in ([images, "--part", part], [images / place]):
            again, *others = command("predict", run, *targets).out.splitlines()
            assert (again, sorted(others)) == (head, sorted(rows))


def test_parts_of_a_runs_own_data(command: Command, finished: Path, own: tuple[Path, Path]) -> None:
    _, run = own
    counts = {
        part: len(table(command("predict", run, "--part", part).out))
        for part in ("labelled", "validation", "unlabeled", "test")
    }
    assert counts == {"labelled": 13, "validation": 3, "unlabeled": 16, "test": 8}
    rows = table(command("predict", finished, "--part", "test").out)
    assert (len(rows), rows[7]["path"]) == (500, "digits:test:7")
    answer = command("predict", finished, "--part", "validation")
    assert (answer.code, answer.err) == (2, f"fastswa: --part: {finished} has no validation images.\n")
    answer = command("predict", finished, "--part", "training")
    assert answer.err == "fastswa: --part: 'training' is not labelled, unlabelled, validation, test.\n"


def test_processes_that_read_change_nothing(command: Command, finished: Path, folder: Path) -> None:
    assert command("predict", finished, folder, "--workers", "2").out == command("predict", finished, folder).out


def test_what_is_there_stays_until_the_new_is_whole(
    command: Command, finished: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"
    out.write_text("old")
    damaged = tmp_path / "a.npz"
    np.savez(damaged, x=np.random.default_rng(0).integers(0, 256, (2000, 8, 8), np.uint8))
    content = bytearray(damaged.read_bytes())
    content[-3000] ^= 1
    damaged.write_bytes(content)
    answer = command("predict", finished, damaged, "--out", out)
    assert (answer.code, answer.err) == (2, f"fastswa: {damaged}: the array x is damaged; write the file again.\n")

    def full(self: Sheet, row: Row) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Sheet, "write", full)
    answer = command("predict", finished, folder, "--out", out)
    assert (answer.code, answer.err) == (1, f"fastswa: cannot write {out}: No space left on device.\n")
    assert out.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz", "out.csv"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "name a run folder or a model file, and then images, a folder, a manifest or an .npz file."),
        ("RUN", "name images to predict, or --part unlabelled for those that RUN was trained on."),
        ("RUN gone.png", "gone.png: there is no such file or folder."),
        ("gone a.png", "there is no model file gone."),
        ("RUN a.png --out a.txt", "--out: a.txt must end in .csv, .tsv, .jsonl."),
        ("RUN list.csv --out ./list.csv", "--out: list.csv is to be predicted itself; choose another name."),
        ("RUN a.png --out a.png/out.csv", "--out: cannot write a.png/out.csv: File exists."),
        ("RUN a.png --top-k 0", "--top-k: '0' is not a number above zero."),
        ("RUN a.png --topk 2", "unknown option --topk for predict; did you mean --top-k?"),
        ("RUN a.png --network best", "RUN has no network 'best'; there are: ema, fast_swa, student, swa, teacher."),
        ("RUN/model.safetensors a.png --network swa", "RUN/model.safetensors is one model; --network chooses"),
        ("RUN a.png --device gpu", "device.name: 'gpu' is not a device; use auto, cpu, cuda or cuda:N."),
        ("seeds a.png", "seeds holds the runs of several seeds; name one, such as seeds/seed-1."),
        ("nothing a.png", "nothing is no run folder: there is neither a config.toml nor a model.safetensors in it."),
        ("stopped a.png", "stopped has no model yet; finish it with `fastswa resume stopped`."),
        ("RUN/model.safetensors --part test", "RUN/model.safetensors holds no run: there is no config.toml in it."),
    ],
)
def test_wrong_requests(
    words: str, sentence: str, command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("RUN").symlink_to(finished)
    Image.new("L", (8, 8)).save("a.png")
    Path("list.csv").write_text("path\na.png\n")
    Path("nothing").mkdir()
    for run in ("seeds/seed-1", "stopped"):
        Path(run).mkdir(parents=True)
        Path(run, "config.toml").write_text("")
    answer = command("predict", *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"fastswa: {sentence}")
    assert answer.err.count("\n") == 1
    assert Path("list.csv").read_text() == "path\na.png\n"


def test_names_that_are_no_utf8_keep_their_bytes(command: Command, finished: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    try:
        Image.new("L", (8, 8)).save(os.fsdecode(name), format="png")
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    assert command("predict", finished, tmp_path, "--out", tmp_path / "out.csv").code == 0
    assert (tmp_path / "out.csv").read_bytes().splitlines()[1].startswith(name + b",")


def test_a_model_of_features_refuses_images(finished: Path) -> None:
    model = fastswa.load(finished)
    model.facts = replace(model.facts, features=True)
    with pytest.raises(fastswa.RequestError, match="takes feature vectors, not images"):
        next(predicted(model, []))


def test_rows_are_written_to_six_digits() -> None:
    stream = io.StringIO()
    sheet = Sheet(stream, "csv", ("a", "b"), Columns())
    sheet.write(Row("x", np.array([1 / 3, 2 / 3], np.float32), None))
    assert stream.getvalue() == "path,label,confidence,p_a,p_b,error\nx,b,0.666667,0.333333,0.666667,\n"


def test_a_list_may_mix_everything(
    finished: Path, folder: Path, digits: np.ndarray, expected: np.ndarray, tmp_path: Path
) -> None:
    model = fastswa.load(finished)
    files = sorted(folder.rglob("*.png"))
    large = np.random.default_rng(0).integers(0, 256, (20, 31, 3), np.uint8)
    Image.fromarray(large).save(tmp_path / "large.png")
    with Image.open(files[2]) as opened:
        mixed: list[Any] = [
            *(str(files[0]), files[1], opened, digits[3], digits[4][None], digits[5][:, :, None]),
            *(torch.from_numpy(digits[6]), tmp_path / "large.png"),
            *(large, Image.fromarray(large), large.transpose(2, 0, 1)),
        ]
        prediction = model.predict(mixed, batch=3)
    np.testing.assert_allclose(prediction.probabilities[:7], expected[:7], rtol=1e-5)
    for row in prediction.probabilities[8:]:
        np.testing.assert_allclose(row, prediction.probabilities[7], rtol=1e-6)
    for one in (files[0], str(files[0]), Image.fromarray(digits[0])):
        np.testing.assert_allclose(model.predict(one).probabilities, expected[:1], rtol=1e-5)
    assert model.predict([]).probabilities.shape == (0, 10)
    with pytest.raises(fastswa.RequestError, match="there is no such file"):
        model.predict([files[0], tmp_path / "gone.png"])
    with pytest.raises(fastswa.RequestError, match="must be uint8"):
        model.predict([digits[0].astype(float)])


def test_the_likeliest_of_a_prediction() -> None:
    figures = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]], np.float32)
    prediction = Prediction(figures.argmax(axis=1), ["b", "a"], figures, ("a", "b", "c"))
    assert prediction.top(2) == [
        [("b", 0.5), ("c", pytest.approx(0.3))],
        [("a", pytest.approx(0.4)), ("b", pytest.approx(0.4))],
    ]
    assert prediction.confidences.tolist() == pytest.approx([0.5, 0.4])


def test_large_images_are_taken_few_at_a_time(finished: Path) -> None:
    model = fastswa.load(finished)
    assert model.batch == 1000
    for side, batch in ((32, 1000), (64, 256), (224, 20), (2000, 1)):
        assert TrainedModel(model.network, replace(model.facts, shape=(3, side, side))).batch == batch


def test_a_temperature_in_the_file_divides_the_logits(finished: Path, digits: np.ndarray, tmp_path: Path) -> None:
    model = fastswa.load(finished)
    file = tmp_path / "model.safetensors"
    save_model(file, model.network, model.facts)
    save_temperature(file, 2.5)
    cooler = fastswa.load(file)
    assert cooler.facts == replace(model.facts, temperature=2.5)
    pixels = torch.from_numpy(digits[:, None])
    np.testing.assert_allclose(cooler.logits(pixels), model.logits(pixels) / 2.5, rtol=1e-6)
    for name, tensor in load_file(file).items():
        assert torch.equal(tensor, load_file(finished / "model.safetensors")[name])


def test_model_files_of_before_and_of_other_rules(finished: Path, tmp_path: Path) -> None:
    """Files without the newer facts load with their defaults; one that reads images otherwise is refused."""
    tensors, facts = load_file(finished / "model.safetensors"), read_facts(finished / "model.safetensors")
    file = tmp_path / "model.safetensors"
    names = ("architecture", "classes", "shape", "mean", "std", "heads", "options", "network", "epoch")
    old = {name: getattr(facts, name) for name in names}
    save_file(tensors, file, metadata={"fastswa": json.dumps(old)})
    assert read_facts(file) == facts
    save_file(tensors, file, metadata={"fastswa": json.dumps({**old, "decoding": 2})})
    with pytest.raises(fastswa.RequestError, match="images decoded by rules 2, and this fastswa has rules 1"):
        fastswa.load(file)


def test_others_may_read_a_model_file(finished: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert (finished / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_standard_output_has_the_letters_of_a_file(
    finished: Path, digits: np.ndarray, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "Käfer.png"
    Image.fromarray(digits[0]).save(image)
    assert command("predict", finished, image, "--out", tmp_path / "rows.csv").code == 0
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii", newline=""))
        assert command("predict", finished, image).code == 0
        assert written.getvalue() == (tmp_path / "rows.csv").read_bytes()


@pytest.mark.parametrize("options", [{"pretrained": True}, [1], "width", 3])
def test_a_model_file_has_nothing_fetched(options: Any, finished: Path, tmp_path: Path, command: Command) -> None:
    """What a file says of its network is a stranger's word: `pretrained` would have weights downloaded or read."""
    file = tmp_path / "model.safetensors"
    content = json.loads(metadata_of(read_facts(finished / "model.safetensors"))["fastswa"])
    save_file(load_file(finished / "model.safetensors"), file, {"fastswa": json.dumps({**content, "options": options})})
    answer = command("predict", file, tmp_path)
    assert answer.code == 2
    assert answer.err == (f"fastswa: {file} was not written by this fastswa: its metadata say nothing of a network.\n")
