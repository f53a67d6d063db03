"""The command line: every wrong request is one sentence and an exit code, and every answer parses."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Answer, Command
from fastswa import __version__, cli
from fastswa.arguments import claimed_folder, free_folder
from fastswa.config import RESUMABLE
from fastswa.console import Lane
from fastswa.layers import build_config, fields, recipe_layer, recipe_names, to_toml
from fastswa.methods import build as build_method
from fastswa.models import build as build_network
from fastswa.registry import nearest
from fastswa.training.folder import RunFolder
from fastswa.training.setup import network_options
from tiny_runs import FLAGS, assert_identical, checkpoints, metrics, models

TRAIN = "train digits-mean-teacher"
METHODS = (
    "fixmatch, flexmatch, freematch, mean-teacher, pi, self-ensembling, sntg, supervised, temporal-ensembling, vadd, "
    "vat, vat-entmin"
)

# What is typed in a folder with `place`'s files, and the one sentence that answers it with exit code 2.
WRONG = {
    "trian": "unknown command 'trian'; did you mean train?",
    "compare a b": f"unknown command 'compare'; there are: {', '.join(sorted(cli.VERBS))}.",
    "--verion": "unknown command '--verion'; " + nearest("--verion", cli.VERBS),
    "train digits-mean-teacher --model cnn13": "model.name: cnn13 takes images of at least 12x12, not 8x8.",
    "train": ("name a folder of images or a recipe (`fastswa recipes` lists them), --config FILE or --from RUN."),
    "train digits-meen-teacher": "unknown recipe 'digits-meen-teacher'; did you mean digits-mean-teacher?",
    "train my-imagse": (
        "unknown recipe 'my-imagse'; nor is there a folder or file of that name (`fastswa recipes` lists the recipes)."
    ),
    "train digits-pi digits-mean-teacher": "name one folder of images or recipe, not 2.",
    "train digits-pi --seed 3 digits": "unexpected argument 'digits'; what to work on comes first after the verb.",
    f"{TRAIN} --method qqqqqq": f"unknown method 'qqqqqq'; there are: {METHODS}.",
    f"{TRAIN} --method mean-teachr": "unknown method 'mean-teachr'; did you mean mean-teacher?",
    f"{TRAIN} --model cnn31": "unknown model 'cnn31'; did you mean cnn13?",
    f"{TRAIN} --data.source cifar11": (
        "there is no data source 'cifar11' (known: digits, cifar10, cifar100, stl10, mnist, usps, usps-margin), "
        "nor a folder, manifest or .npz file of that name here; did you mean 'cifar10'?"
    ),
    f"{TRAIN} --data.source=": "data.source is empty; name a data set, a folder, a manifest or an .npz file.",
    f"{TRAIN} --data.source fotos": (
        "fotos: there is no such folder or file, neither here nor under data (data.root), nor a data source of that "
        "name (known: digits, cifar10, cifar100, stl10, mnist, usps, usps-margin); run the command where the path "
        "begins, or set data.root to that folder."
    ),
    f"{TRAIN} --epcohs 3": "unknown setting --epcohs; did you mean epochs?",
    f"{TRAIN} --averaging.swa.evry 3": "unknown setting --averaging.swa.evry; did you mean averaging.NAME.every?",
    f"{TRAIN} --epochs 0": "schedule.epochs 0 would train nothing; name an epoch to train to.",
    f"{TRAIN} --epochs three": "schedule.epochs: 'three' is not a whole number.",
    f"{TRAIN} --epochs 1.5": "schedule.epochs: '1.5' is not a whole number.",
    f"{TRAIN} --optimiser.lr fast": "optimiser.lr: 'fast' is not a number.",
    f"{TRAIN} --optimiser.lr nan": "optimiser.lr: 'nan' is not a finite number.",
    f"{TRAIN} --engine fast": "device.engine: 'fast' is not one of 'auto', 'eager', 'compiled' or 'graph'.",
    f"{TRAIN} --log.tensorboard=maybe": "log.tensorboard: 'maybe' is not true or false.",
    f"{TRAIN} --epochs": "--epochs needs a value.",
    f"{TRAIN} --out": "--out needs a value.",
    f"{TRAIN} --out --json": "--out needs a value.",
    f"{TRAIN} --out=": "--out needs a value.",
    f"{TRAIN} --lr 0.1": "unknown setting --lr; did you mean optimiser.lr?",
    "evaluate taken -d cpu": "unknown option -d for evaluate; there are: --device, --flips, --json.",
    f"{TRAIN} --json=yes": "--json takes no value.",
    f"{TRAIN} --stop-after soon": "--stop-after: 'soon' is not a number above zero.",
    f"{TRAIN} --stop-after 0": "--stop-after: '0' is not a number above zero.",
    f"{TRAIN} --batch.size 5000": (
        "batch.size: a batch takes 4950 unlabelled images, but only 1247 are there; make the batch smaller."
    ),
    f"{TRAIN} --batch.labelled 200": "batch.labelled (200) is larger than batch.size (100).",
    f"{TRAIN} --batch.labelled 100": ("batch.labelled (100) leaves no room for unlabelled images in a batch of 100."),
    f"{TRAIN} --labels 1297": ("split.labels: 1297 labels want 130 images of class '0', but only 128 are there."),
    f"{TRAIN} --labels 5": "split.labels: 5 labels cannot cover 10 classes; give at least 10.",
    f"{TRAIN} --labels 0": "split.labels: 0 labels cannot cover 10 classes; give at least 10.",
    f"{TRAIN} --split.unlabelled 5000": (
        "split.unlabelled: 5000 unlabelled images are wanted, but only 1247 are there."
    ),
    f"{TRAIN} --split.validation 5000": ("split.validation: 5000 images cannot be held out of 1297 labelled ones."),
    f"{TRAIN} --split.file none.txt": "split.file: cannot read none.txt: No such file or directory.",
    f"{TRAIN} --device mps": "device.name: Apple's mps is not supported (its results were never checked); use cpu.",
    f"{TRAIN} --device gpu": "device.name: 'gpu' is not a device; use auto, cpu, cuda or cuda:N.",
    f"{TRAIN} --device cpu --precision tf32": "device.precision: tf32 exists on CUDA devices only; use fp32.",
    f"{TRAIN} --device cpu --engine graph": "device.engine: graph needs a CUDA device; use eager.",
    f"{TRAIN} --method.entropy 2": "method.entropy has no effect on the method mean-teacher; leave it out.",
    f"{TRAIN} --averaging.student.kind swa": (
        "averaging.student: 'student' is the name of a trained network, choose another."
    ),
    f"{TRAIN} --out taken": (
        "taken already holds a run; continue it with `fastswa resume taken` or choose another --out."
    ),
    f"{TRAIN} --out text.toml": "cannot write text.toml: File exists.",
    f"{TRAIN} --out text.toml/run": "cannot write text.toml/run: Not a directory.",
    f"{TRAIN} --start.weights none": "there is no model file none.",
    "train --config none.toml": "cannot read none.toml: No such file or directory.",
    "train --config .": "cannot read .: Is a directory.",
    "train --config text.toml": (
        "text.toml is not valid TOML: Expected '=' after a key in a key/value pair (at line 1, column 6)."
    ),
    "train --config binary.toml": "cannot read binary.toml: it is not text.",
    "train --config unknown.toml": "unknown setting schedule.epcohs; did you mean epochs?",
    "train --config type.toml": "schedule: '3' is not a table of settings.",
    "train cifar10-cnn-mean-teacher-4k": (
        "there is no CIFAR-10 under data: run `fastswa data download cifar10 --root data`, "
        "or pass `--data.root` with the folder that holds cifar-10-batches-bin."
    ),
    "train damaged.npz": "damaged.npz is not an .npz file or is truncated; write it again with numpy.savez.",
    "train none.npz": "none.npz: there is no such file; give the path of an .npz file.",
    "resume": "name a run folder.",
    "resume none": "none holds no run: there is no config.toml in it.",
    "resume text.toml": "text.toml holds no run: there is no config.toml in it.",
    "resume taken --seed 4": (
        f"seed cannot change on resume (only {', '.join(RESUMABLE)}); "
        "`fastswa train --from taken --seed …` forks the run instead."
    ),
    "evaluate": "name a run folder.",
    "evaluate a b": "name one run folder, not 2.",
    "train digits-pi --seeds one": "--seeds: 'one' is not a list of whole numbers, such as 10,11,12.",
    "evaluate none": "none holds no run: there is no config.toml in it.",
    "evaluate whole.npz": (
        "whole.npz is a file, and evaluate takes run folders; a model file is for `fastswa predict whole.npz IMAGES` "
        "or `fastswa export whole.npz`."
    ),
    "evaluate taken": "taken holds no models yet; finish it with `fastswa resume taken`.",
    "evaluate taken --devcie cpu": "unknown option --devcie for evaluate; did you mean --device?",
    "recipes digits-py": "unknown recipe 'digits-py'; did you mean digits-pi?",
    "data download": "say `fastswa data download NAME`, with cifar10 or cifar100 for NAME.",
    "demo digits": "demo takes no 'digits'; it trains its own three recipes.",
    "demo --seeds 1.5": "--seeds: '1.5' is not a whole number.",
    "demo --seeds inf": "--seeds: 'inf' is not a number above zero.",
    "demo --out taken": "taken is already there; choose another --out.",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with things that cannot be used, and a run that has not begun."""
    monkeypatch.chdir(tmp_path)
    Path("text.toml").write_text("just words")
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    Path("unknown.toml").write_text("[schedule]\nepcohs = 3\n")
    Path("type.toml").write_text("schedule = 3\n")
    np.savez("whole.npz", x_train=np.zeros((4, 8, 8), np.uint8), y_train=np.zeros(4, int))
    Path("damaged.npz").write_bytes(Path("whole.npz").read_bytes()[:300])
    RunFolder(Path("taken")).create(build_config(recipe_layer("digits-pi")))
    return tmp_path


def test_an_empty_word_is_no_folder_and_no_value(place: Path, command: Command) -> None:
    for verb in ("train", "resume", "evaluate", "report", "check"):
        empty = f"fastswa: a word after {verb} is empty; is a variable of the shell not set?\n"
        assert command(verb, "") == (2, "", empty)
    assert command(*TRAIN.split(), "--out", "") == (2, "", "fastswa: --out needs a value.\n")


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_request_is_one_sentence(words: str, place: Path, command: Command) -> None:
    before = sorted(place.rglob("*"))
    assert command(*words.split()) == (2, "", f"fastswa: {WRONG[words]}\n")
    assert sorted(place.rglob("*")) == before


# What is said of a folder when it is made, a command that only shows says otherwise.
SHOWN = [words for words in WRONG if words.startswith(TRAIN) and "text.toml" not in words]


@pytest.mark.parametrize("words", SHOWN)
def test_what_training_would_refuse_is_not_shown(words: str, place: Path, command: Command) -> None:
    before = sorted(place.rglob("*"))
    assert command(*words.split(), "--print-config") == (2, "", f"fastswa: {WRONG[words]}\n")
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--method mean_teacher", "unknown method 'mean_teacher'; did you mean mean-teacher?"),
        ("--model cnn31", "unknown model 'cnn31'; did you mean cnn13?"),
        ("--model.padded true", None),
        ("--model shake-shake-26-2x96d --model.padded true", "model.padded has no effect on the model "),
        ("--device gpu", WRONG[f"{TRAIN} --device gpu"]),
        ("--seeds a", "--seeds: 'a' is not a list of whole numbers, such as 10,11,12."),
        ("--seeds 1,2 --seed 3", "--seeds names the seeds that are trained; leave out --seed."),
        ("--minutes 0", "--minutes: '0' is not a number above zero."),
        ("--minutes 1 --epochs 3", "--minutes and schedule.epochs both say how long to train; give one of them."),
        ("--minutes 1 --from taken", "--minutes is for new runs; say with schedule.epochs how far a fork goes."),
        ("--from none", "none holds no run: there is no config.toml in it."),
        ("--from taken", "taken has no whole checkpoint."),
        ("--start.weights none", "there is no model file none."),
        ("--stop-after 0", "--stop-after: '0' is not a number above zero."),
        ("--analyze none", "unknown study 'none'; "),
        ("--out taken", WRONG[f"{TRAIN} --out taken"]),
        ("--out text.toml/run", "cannot write into text.toml/run: text.toml is no folder."),
    ],
)
def test_a_recipe_whose_images_are_not_there_is_refused_as_far_as_that_goes(
    words: str, sentence: str | None, place: Path, command: Command
) -> None:
    answer = command("train", "cifar10-cnn-mean-teacher-4k", *words.split(), "--print-config")
    assert answer.code == (0 if sentence is None else 2), answer
    assert answer.err.startswith(f"fastswa: {sentence}" if sentence else "")
    assert answer.err.count("\n") == (sentence is not None)


def test_what_is_shown_is_the_first_seed_without_a_length_that_is_measured(place: Path, command: Command) -> None:
    answer = command("train", "digits-pi", "--seeds", "4,5", "--minutes", "2", "--print-config")
    assert answer.code == 0
    shown = build_config(tomllib.loads(answer.out))
    assert (shown.seed, shown.schedule) == (4, build_config(recipe_layer("digits-pi")).schedule)
    assert answer.err == (
        "fastswa: --minutes: how long to train is measured when training starts; the epochs and steps shown are "
        "without it.\nfastswa: --seeds: this is seed 4; the others differ from it in their seeds alone.\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("words", [f"{TRAIN} --device cuda:1", "evaluate taken --device cuda:1"])
def test_a_device_that_is_not_there(words: str, place: Path, command: Command, finished: Path) -> None:
    answer = command(*words.replace("taken", str(finished)).split())
    sentence = "device.name: 'cuda:1' was asked for, but torch sees no CUDA device here; use cpu."
    assert answer == (2, "", f"fastswa: {sentence}\n")


def test_a_garbled_data_file_within_a_whole_zip(place: Path, command: Command) -> None:
    content = bytearray(Path("whole.npz").read_bytes())
    content[200] ^= 0xFF
    Path("garbled.npz").write_bytes(content)
    answer = command("train", "garbled.npz")
    assert answer.code == 2
    assert answer.err.startswith("fastswa: garbled.npz is damaged or cannot be read (")
    assert answer.err.count("\n") == 1


def test_what_was_not_foreseen_is_one_line_too(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    def fails(arguments: cli.Arguments) -> int:
        raise ZeroDivisionError("first line\nsecond line")

    def interrupted(arguments: cli.Arguments) -> int:
        raise KeyboardInterrupt

    def locked(arguments: cli.Arguments) -> int:
        raise PermissionError(13, "Permission denied", "runs/other/config.toml")

    verb = cli.VERBS["recipes"]
    monkeypatch.setitem(cli.VERBS, "recipes", cli.Verb(fails, verb.usage, verb.summary, verb.options))
    line = "fastswa: failed: ZeroDivisionError: first line second line (--debug shows where).\n"
    assert command("recipes") == (1, "", line)
    with pytest.raises(ZeroDivisionError):
        command("recipes", "--debug")
    monkeypatch.setitem(cli.VERBS, "recipes", cli.Verb(interrupted, verb.usage, verb.summary, verb.options))
    assert command("recipes") == (1, "", "fastswa: interrupted.\n")
    monkeypatch.setitem(cli.VERBS, "recipes", cli.Verb(locked, verb.usage, verb.summary, verb.options))
    line = "fastswa: runs/other/config.toml may not be read or written: Permission denied.\n"
    assert command("recipes") == (1, "", line)


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["demo", "--help"], ["recipes", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys; from fastswa.cli import main; "
        f"code = main({words!r}); "
        "heavy = {'torch', 'pydantic', 'numpy', 'rich', 'matplotlib', 'tomli_w'} & sys.modules.keys(); "
        "sys.exit(f'imported {sorted(heavy)}' if heavy else code)"
    )
    answer = python("-c", program)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("fastswa")


def test_help_answers_at_once() -> None:
    def seconds() -> float:
        began = time.monotonic()
        assert python("-m", "fastswa", "--help").returncode == 0
        return time.monotonic() - began

    assert min(seconds() for _ in range(4)) < 0.5


def test_help_names_every_verb_and_every_setting(command: Command) -> None:
    text = command("--help").out
    assert command() == (0, text, "")
    for name, verb in cli.VERBS.items():
        assert f"  {verb.usage}" in text
        assert command(name, "-h").out.startswith(f"fastswa {verb.usage}\n")
    settings = command("train", "--help").out
    for name, field in fields():
        assert f"  --{name}" in settings
        assert field.description
        assert field.description in settings
    assert "--schedule.epochs, --epochs" in settings
    assert re.search(r"--augment\.flip +horizontal flips \[true\]\n", settings)
    assert re.search(r"--checkpoint\.keep .*RUN@EPOCH\n", settings)
    # Whatever is not given to these stays as it is in the run or the recipe.
    assert all(re.search(r"--epochs +how far to train\n", command(verb, "--help").out) for verb in ("resume", "sweep"))
    assert command("--version") == (0, f"fastswa {__version__}\n", "")


def test_help_fits_the_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = command("--help").out.splitlines()
        summaries = [line for line in lines if line.startswith(" " * 6)]
        assert all(len(line) <= min(columns, 120) for line in summaries)
        said = " ".join(line.strip() for line in summaries)
        assert said == " ".join(verb.summary for verb in cli.VERBS.values())


def test_nobody_reading_the_output_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fastswa", "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 1)
    process.stderr.close()


def test_recipes_are_listed_and_shown(command: Command) -> None:
    lines = command("recipes").out.splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    assert {"digits-supervised", "digits-pi", "digits-mean-teacher", "cifar10-cnn-mean-teacher-4k"} <= set(
        recipe_names()
    )
    summaries = json.loads(command("recipes", "--json").out)
    assert list(summaries) == recipe_names()
    shown = command("recipes", "digits-pi").out
    assert shown.startswith(f"# {summaries['digits-pi']}\n")
    assert tomllib.loads(shown)["method"]["name"] == "pi"


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_builds_and_comes_back(recipe: str, command: Command, tmp_path: Path) -> None:
    printed = command("train", recipe, "--print-config")
    assert (printed.code, printed.err) == (0, "")
    file = tmp_path / "config.toml"
    file.write_text(printed.out)
    assert command("train", "--config", file, "--print-config") == printed
    config = build_config(tomllib.loads(printed.out))
    assert config == build_config(recipe_layer(recipe))
    assert to_toml(config) == printed.out
    method = build_method(config.method, images=10, classes=10)
    with torch.device("meta"):
        network = build_network(
            config.model.name, channels=3, classes=10, heads=config.model.heads, **network_options(config)
        )
    assert "classification" in method.terms
    assert sum(p.numel() for p in network.parameters()) > 1000


def test_flags_win_over_the_file_and_the_file_over_the_recipe(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 5\n[optimiser]\nlr = 0.2\nmomentum = 0.8\n[averaging.mine]\nkind = 'swa'\n")
    answer = command(
        *("train", "digits-pi", "--config", file, "--optimiser.lr", "0.3", "--print-config"),
        *("--deterministic", "--checkpoint.keep", "1,2", "--averaging.mine.every=0.5"),
    )
    config = tomllib.loads(answer.out)
    assert (config["seed"], config["split"]["seed"], config["split"]["labels"]) == (5, 5, 50)
    assert (config["optimiser"]["lr"], config["optimiser"]["momentum"]) == (0.3, 0.8)
    assert (config["device"]["deterministic"], config["checkpoint"]["keep"]) == (True, [1, 2])
    assert config["averaging"].keys() == {"swa", "fast_swa", "mine"}
    assert config["averaging"]["mine"] == {"kind": "swa", "start": 50, "every": 0.5, "decay": 0.97}


def parsed(answer: Answer) -> dict[str, object]:
    """The one line of JSON that a command printed."""
    assert answer.out.count("\n") == 1
    found: dict[str, object] = json.loads(answer.out)
    return found


def test_train_resume_and_evaluate_answer_in_json(command: Command, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    answer = command(*TRAIN.split(), "--out", run, *FLAGS, "--json")
    assert answer.code == 0
    found = parsed(answer)
    assert (found["run"], found["finished"]) == (str(run), True)
    assert found["last"] == RunFolder(run).metrics()[-1]
    assert_identical(models(run), models(finished))
    assert [line.split()[:2] for line in answer.err.splitlines()] == [["epoch", str(k)] for k in (1, 2, 3, 4)]
    again = command("resume", run, "--json")
    assert again.err == f"fastswa: {run} already reached epoch 4; nothing to do.\n"
    assert parsed(again) == found
    figures = parsed(command("evaluate", run, "--json", "--device", "cpu"))
    last = metrics(run)[-1]
    expected = {
        name: {"error": last["error"][name], "nll": pytest.approx(last["nll"][name], rel=1e-5)} for name in last["nll"]
    }
    assert figures == {"test": expected}


def test_people_get_a_line_and_a_table(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    answer = command(*TRAIN.split(), "--out", run, *FLAGS, "--epochs", "2")
    done = f"{run}: done; the model to use is {run}/model.safetensors\n"
    assert answer.out == f"{done}{run}: the report is {run}/report.html\n"
    line = metrics(run)[-1]
    shown = {"student": "student", "teacher": "teacher", "swa": "SWA", "fast_swa": "fast-SWA", "ema": "EMA"}
    figures = "  ".join(f"{shown[name]} {error:.2f}%" for name, error in line["error"].items())
    assert answer.err.splitlines()[-1].startswith(f"epoch    2  loss {sum(line['loss'].values()):.4f}  {figures}  (")
    table = command("evaluate", run, "--device", "cpu").out
    rows = [[cell.strip() for cell in row.split("│")][1:3] for row in table.splitlines()]
    for name, error in line["error"].items():
        assert [shown[name], f"{error:.2f}"] in rows
    assert "test error, %" in table


def test_a_time_limit_saves_and_ends_cleanly(command: Command, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    answer = command(*TRAIN.split(), "--out", run, *FLAGS, "--stop-after", "0.0000001")
    assert answer == (0, "", f"fastswa: stopped and saved; go on with `fastswa resume {run}`.\n")
    assert checkpoints(run) == [1]
    stopped = command("resume", run, "--stop-after", "0.0000001", "--json")
    assert (stopped.code, parsed(stopped)) == (0, {"run": str(run), "finished": False, "last": None})
    assert checkpoints(run) == [1, 2]
    assert command("resume", run, "--stop-after", "10").code == 0
    assert_identical(models(run), models(finished))
    assert metrics(run) == metrics(finished)


def test_ctrl_c_stops_after_the_step_and_twice_at_once(
    monkeypatch: pytest.MonkeyPatch, command: Command, finished: Path, tmp_path: Path
) -> None:
    run, original = tmp_path / "run", Lane.evaluated
    handler = signal.getsignal(signal.SIGINT)

    def pressed(watcher: Lane, line: dict[str, object], times: int) -> None:
        original(watcher, line)
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Lane, "evaluated", lambda watcher, line: pressed(watcher, line, 1))
        once = command(*TRAIN.split(), "--out", run, *FLAGS)
    assert (once.code, once.out) == (1, "")
    assert once.err.splitlines()[1:] == [
        "fastswa: stopping after this step; once more to stop at once.",
        f"fastswa: stopped and saved; go on with `fastswa resume {run}`.",
    ]
    assert checkpoints(run) == [3, 4]
    with monkeypatch.context() as patch:
        patch.setattr(Lane, "evaluated", lambda watcher, line: pressed(watcher, line, 2))
        twice = command("resume", run)
    assert (twice.code, twice.err.splitlines()[-1]) == (1, "fastswa: interrupted.")
    assert signal.getsignal(signal.SIGINT) is handler
    assert command("resume", run).code == 0
    assert_identical(models(run), models(finished))
    assert metrics(run) == metrics(finished)


class Unwritable(io.StringIO):
    """A standard error that fails from a line of its third evaluation on."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        if "epoch    3" in self.getvalue() + text:
            raise self.error
        return super().write(text)


def test_a_log_that_cannot_be_written_stops_no_run(
    monkeypatch: pytest.MonkeyPatch, command: Command, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Unwritable(OSError(errno.ENOSPC, "No space left on device")))
        assert command(*TRAIN.split(), "--out", run, *FLAGS, "--no-report").code == 0
        assert command("evaluate", tmp_path / "none").code == 2
    assert_identical(models(run), models(finished))
    assert metrics(run) == metrics(finished)


def test_a_run_that_nobody_reads_of_is_saved_and_ends(
    monkeypatch: pytest.MonkeyPatch, command: Command, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    often = [*FLAGS, "--checkpoint.every", "100"]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Unwritable(BrokenPipeError(errno.EPIPE, "Broken pipe")))
        assert command(*TRAIN.split(), "--out", run, *often).code == 1
    assert [line["epoch"] for line in metrics(run)] == [1, 2, 3]
    assert len(checkpoints(run)) == 1
    assert command("resume", run).code == 0
    assert_identical(models(run), models(finished))


def test_names_beyond_the_terminals_alphabet_are_shown_by_number() -> None:
    fewer = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = "import sys, fastswa.cli as c; c._dispatch = lambda *_: print('é') or 0; sys.exit(c.main())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, env=fewer, timeout=60)
    assert (printed.returncode, printed.stdout.strip(), printed.stderr) == (0, b"\\xe9", b"")


@pytest.mark.skipif(os.name == "nt", reason="a shell of Unix closes the stream")
def test_a_closed_standard_output_is_no_failure() -> None:
    closed = subprocess.run(["sh", "-c", f"{sys.executable} -m fastswa --version >&-"], capture_output=True, timeout=60)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_runs_get_a_folder_of_their_own(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("digits-mean-teacher-seed-3", "digits-mean-teacher-seed-3-2"):
        answer = command(*TRAIN.split(), *FLAGS, "--epochs", "1", "--schedule.length", "1")
        done = f"runs/{folder}: done; the model to use is runs/{folder}/model.safetensors\n"
        assert answer.out == f"{done}runs/{folder}: the report is runs/{folder}/report.html\n"
        assert (tmp_path / "runs" / folder / "config.toml").is_file()


def test_folders_that_nobody_named_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_folder("runs/demo") == "runs/demo"
    (tmp_path / "runs/demo").mkdir(parents=True)
    assert free_folder("runs/demo") == "runs/demo-2"
    (tmp_path / "runs/demo-2").mkdir()
    assert free_folder("runs/demo") == "runs/demo-3"


def test_commands_of_one_moment_get_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = iter(["runs/pi", "runs/pi", "runs/pi-2"])  # the second is asked before the first is made
    monkeypatch.setattr("fastswa.arguments.free_folder", lambda base: next(names))
    with claimed_folder("runs/pi") as first, claimed_folder("runs/pi") as second:
        assert [str(first), str(second)] == ["runs/pi", "runs/pi-2"]
        (second / "config.toml").touch()
    assert [path.name for path in Path("runs").iterdir()] == ["pi-2"]


def test_a_refused_run_leaves_no_folder(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(*TRAIN.split(), "--batch.size", "5000").code == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").write_text("no folder")
    answer = command(*TRAIN.split(), *FLAGS)
    assert answer == (2, "", "fastswa: cannot write runs/digits-mean-teacher-seed-3: Not a directory.\n")
