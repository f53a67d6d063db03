"""benchmarks/rays.py and benchmarks/analyses.py at sizes that a CPU does in seconds."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from conftest import Command
from fastswa.analysis.pairs import pairs
from fastswa.analysis.rays import rays as made_rays
from fastswa.analysis.study import Request, plain
from fastswa.config import Config
from fastswa.layers import merge
from fastswa.training.device import Compute
from fastswa.training.lanes import Lanes
from fastswa.training.run import RunResult
from tiny_runs import TINY, assert_identical, metrics, models, train

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def rays(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("rays")


@pytest.fixture
def analyses(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("analyses")


def parts() -> ModuleType:
    """What analyses.py, which must be there, works on."""
    return importlib.import_module("analysis_parts")


def test_a_study_is_timed_beside_its_ceiling_and_a_plain_loop(
    rays: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--rays", "3", "--points", "5", "--train", "200", "--labels", "20", "--test", "30", "--refresh", "1")
    words = (*sizes, "--batch", "10", "--plain-points", "1", "--seconds", "0.01", "--device", "cpu", "--json")
    rays.main(["--model", "small", *words])
    forward, study, plain = json.loads(capsys.readouterr().out)
    assert (forward["what"], forward["ratio_to_forward"]) == ("forward pass, large batch", 1.0)
    assert (study["points"], study["images"]) == (15, 100 + 20 + 30)
    assert study["ratio_to_forward"] == pytest.approx(study["tflops"] / forward["tflops"])
    assert plain["times_slower"] == pytest.approx(plain["seconds"] / (study["seconds"] / 15))
    rays.show([rays.Row(**row) for row in (forward, study, plain)], "cpu")
    assert "plain eager loop, fp32" in capsys.readouterr().out


def test_the_flop_of_the_13_layer_network_is_the_one_its_file_states(rays: ModuleType) -> None:
    config = rays.build_config(rays.recipe_layer("cifar10-cnn-pi-4k"), {"split": {"labels": 20}})
    compute = rays.choose_compute(config.device.model_copy(update={"name": "cpu"}))
    material = rays.prepare(config, rays.random_images(200, 10), compute)
    assert rays.flop_of_an_image(material) == pytest.approx(1.46e9, rel=0.01)


def test_the_plan_is_what_the_figures_need(analyses: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyses.main([]) == 0
    plan = capsys.readouterr().out
    for name, part in analyses.PARTS.items():
        assert f"{name}: " in plan
        common = {"seed": 1}
        configs = {run: settings.config(common) for run, settings in part.runs.items()}
        for made in part.studies:
            assert {*made.runs} <= {*part.runs, *parts().fork_names(part)}
            for asked in analyses.asked_in(made.asked):
                for run in made.runs:
                    if run in configs:
                        analyses.refuse_missing([asked], configs[run])
        # Half an hour of a machine holds a part, and no command of it is longer than ten minutes.
        assert sum(parts().expected(part).values()) < 27 * 60
        assert all(made.seconds < 300 for made in part.studies)
    steps = {run.settings.get("batch", {}).get("steps") for run in analyses.PARTS["unlabelled"].runs.values()}
    assert steps == {920}


def test_side_by_side_is_as_long_as_the_longest(analyses: ModuleType) -> None:
    part = parts().Part("", {"a": parts().Run("", 100), "b": parts().Run("", 50)}, ())
    both, alone = 50 * 920 * 2 * parts().BESIDE, 50 * 920 * parts().ALONE
    expected = (1 + parts().EDGES) * (both + alone) / 1e3 + parts().START
    assert parts().expected(part) == {"training": pytest.approx(expected), "studies": 0}


def test_a_run_that_begins_within_another_takes_its_own_steps_alone(analyses: ModuleType) -> None:
    runs = {"a": parts().Run("", 100), "b": parts().Run("", 60, start=("a", 50))}
    expected = parts().expected(parts().Part("", runs, ()))
    longer = 1e-3 * (1 + parts().EDGES) * 920 * parts().ALONE
    assert expected["training"] == pytest.approx(100 * longer + parts().START)
    assert expected["forks"] == pytest.approx(10 * longer + parts().AGAIN)


def test_swa_as_teacher_begins_within_the_mean_teacher_as_if_it_had_been_trained_alone(
    analyses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to the step at which SWA becomes the teacher the two runs are one; the step itself is the fork's own."""
    runs = analyses.PARTS["mean-teacher"].runs
    (parent, epoch), whole = runs["swa-teacher"].start, runs["swa-teacher"].config({})
    assert epoch == whole.method.teacher_start - 1
    assert epoch in runs[parent].config({}).checkpoint.keep
    ema = {**runs[parent].config({}).method.model_dump(), "teacher": "swa"}
    assert whole.method.model_dump() == ema
    settings = {**TINY, "method": {"weight": 100, "teacher_start": 3}}
    swa = merge(settings, {"method": {"teacher": "swa"}})
    kept = merge(settings, {"checkpoint": {"keep": [2]}})
    recipe = "digits-mean-teacher"
    part = parts().Part(
        "",
        {"ema": parts().Run(recipe, 4, kept), "swa": parts().Run(recipe, 6, swa, start=("ema", 2))},
        (parts().Made("teachers", "teachers --epochs 4", ("ema", "swa"), 0),),
    )
    monkeypatch.setattr(analyses, "PARTS", {"mean-teacher": part})
    assert analyses.main(["mean-teacher", "--device", "cpu", "--seed", "3", "--runs", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["done"]
    alone = tmp_path / "alone"
    train(parts().Run(recipe, 6, swa).config({"seed": 3, "device": {"name": "cpu"}}), alone)
    fork = tmp_path / "mean-teacher" / "swa"
    assert metrics(fork) == [line for line in metrics(alone) if line["epoch"] > 2]
    assert_identical(models(fork), models(alone))


def test_a_run_that_begins_within_another_joins_it_once_that_is_so_far(
    analyses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"ema": parts().Run("digits-pi", 4, TINY), "swa": parts().Run("digits-pi", 6, TINY, start=("ema", 2))}
    work = analyses.Work(parts().Part("", runs, ()), tmp_path, {}, tmp_path / "it.zip")
    assert work.waiting().keys() == {"ema"}
    monkeypatch.setattr(analyses, "checkpoint_epochs", lambda folder: {2.0: 6} if folder.parent.name == "ema" else {})
    assert work.waiting().keys() == {"ema", "swa"}


def test_several_parts_are_trained_side_by_side_and_come_back_apart(
    analyses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def part(run: str) -> Any:
        made = parts().Made("teachers", "teachers", (run,), 0)
        return parts().Part("", {run: parts().Run("digits-pi", 2, TINY)}, (made,))

    monkeypatch.setattr(analyses, "PARTS", {"a": part("one"), "b": part("two")})
    began = []
    in_groups = analyses.train_groups

    def grouped(runs: Any, together: int, say: Any, **options: Any) -> Any:
        began.append((len(runs), together))
        return in_groups(runs, together, say, **options)

    monkeypatch.setattr(analyses, "train_groups", grouped)
    words = ["--device", "cpu", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert analyses.main(["a", "b", *words]) == 0
    assert began == [(2, 1)]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["done"]
    for name, run in (("a", "one"), ("b", "two")):
        with zipfile.ZipFile(tmp_path / f"{name}.zip") as archive:
            assert {f"{run}/metrics.jsonl", "analysis/teachers/teachers.json"} <= {*archive.namelist()}
    assert analyses.main(["a", "c", *words]) == 2
    assert "There is no part c; there are a, b." in capsys.readouterr().err


def one_run(analyses: ModuleType, name: str, **settings: Any) -> Any:
    """A part of one short run and one study of it."""
    made = parts().Made("teachers", "teachers", (name,), 0)
    settings = {key: value for key, value in merge(TINY, settings).items() if key != "seed"}
    return parts().Part("", {name: parts().Run("digits-pi", 2, settings)}, (made,))


def test_a_part_begun_to_another_end_is_refused_rather_than_trained_for_ever(
    analyses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(analyses, "PARTS", {"a": one_run(analyses, "one")})
    words = ["a", "--device", "cpu", "--runs", str(tmp_path)]
    assert analyses.main([*words, "--schedule.epochs", "2"]) == 0
    capsys.readouterr()
    run = tmp_path / "a" / "one"
    for other, setting in (
        (["--schedule.epochs", "3"], "schedule.epochs 2, and 3"),
        (["--seed", "7"], "seed 10, and 7"),
        (["--batch.steps", "9"], f"batch.steps {TINY['batch']['steps']}, and 9"),
    ):
        assert analyses.main([*words, *other]) == 2
        assert capsys.readouterr().err == (
            f"fastswa: {run} was begun with {setting} is asked for; "
            "ask for the same, or name another folder by --runs.\n"
        )
    assert analyses.main([*words, "--evaluation.every", "2"]) == 0  # which may change on the way


def test_a_run_is_done_at_the_end_that_its_folder_says(analyses: ModuleType, tmp_path: Path) -> None:
    part = one_run(analyses, "one")
    work = analyses.Work(part, tmp_path, {"device": {"name": "cpu"}}, tmp_path / "a.zip")
    [config] = work.waiting().values()
    train(config.model_copy(update={"schedule": config.schedule.model_copy(update={"epochs": 1})}), tmp_path / "one")
    assert not work.waiting()


def test_all_parts_in_one_command_begin_as_many_runs_as_a_gpu_takes(
    analyses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Compute(torch.device("cuda", 0), "bf16", "graph", deterministic=False)
    monkeypatch.setattr(analyses, "choose_compute", lambda device: gpu)
    sizes, lanes = [], Lanes(gpu)

    def attempted(runs: Any, say: Any, **_: Any) -> list[Any]:
        lanes.at_once(len(runs))
        sizes.append(len(runs))
        return [RunResult(run.path, [], False) for run in runs]

    monkeypatch.setattr("fastswa.training.groups.attempt_together", attempted)
    common = {"seed": 10}
    works = [
        analyses.Work(part, tmp_path / name, common, tmp_path / f"{name}.zip") for name, part in analyses.PARTS.items()
    ]
    assert not analyses.carried_out(works, analyses.Clock(5))
    assert sizes == [7, 1]


def test_a_run_that_fails_blocks_no_study_of_others(
    analyses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = one_run(analyses, "broken", data={"source": "nothing.npz"})
    monkeypatch.setattr(analyses, "PARTS", {"a": broken, "b": one_run(analyses, "two")})
    words = ["--device", "cpu", "--runs", str(tmp_path)]
    for _ in range(2):  # the second time only what failed is left to train
        assert analyses.main(["a", "b", *words]) == 1
        said = capsys.readouterr()
        assert "fastswa: a, broken failed: " in said.err
        assert "nothing.npz" in said.err
        assert json.loads(said.out.splitlines()[-1])["done"] is False
        with zipfile.ZipFile(tmp_path / "b.zip") as archive:
            assert "analysis/teachers/teachers.json" in archive.namelist()
        shutil.rmtree(tmp_path / "b" / "analysis")


def test_words_that_mean_nothing_are_refused(
    analyses: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for minutes in ("nan", "inf", "0", "-1"):
        assert analyses.main(["pi", f"--minutes={minutes}", "--runs", str(tmp_path / "runs")]) == 2
        said = capsys.readouterr().err
        assert said == f"fastswa: --minutes: {float(minutes):g} is not a number of minutes above zero.\n"
    archive = tmp_path / "pi.zip"
    assert analyses.main(["pi", "--runs", str(tmp_path / "runs"), "--out", str(archive)]) == 2
    said = capsys.readouterr().err
    assert said == f"fastswa: --out: {archive} is to be a folder, which gets PART.zip; name {tmp_path} instead.\n"
    (tmp_path / "file").touch()
    assert analyses.main(["pi", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "file")]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_random_rays_of_every_part_go_as_far(analyses: ModuleType) -> None:
    rays = [made.asked for part in analyses.PARTS.values() for made in part.studies if made.name == "rays"]
    assert len(rays) == 5
    assert set(rays) == {"rays --epochs 170,180 --distance 60"}


def tiny_part(analyses: ModuleType) -> Any:
    settings = {**TINY, "checkpoint": {"every": 1, "keep_every": 1}}
    forked = Request((), cycles=(1.0,), constant=(3.0,), until=5)
    studies = (
        parts().Made("late", "pairs --epochs 1,4", ("pi", "other"), 0),
        parts().Made("schedule", "schedule", ("cycle-1", "constant-3"), 0),
        parts().Made("teachers", "teachers", ("pi", "other"), 0),
    )
    runs = {"pi": parts().Run("digits-pi", 4, settings), "other": parts().Run("digits-mean-teacher", 4, settings)}
    return parts().Part("a part", runs, studies, ("pi", forked))


def test_a_part_goes_on_by_the_same_command_and_comes_back_as_one_file(
    analyses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(analyses, "PARTS", {"pi": tiny_part(analyses)})
    words = ["pi", "--device", "cpu", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    stopping = analyses.ConsoleWatcher
    monkeypatch.setattr(analyses, "ConsoleWatcher", lambda minutes: stopping(1e-9))
    assert analyses.main(words) == 0
    assert not (tmp_path / "runs" / "pi" / "analysis").exists()
    monkeypatch.setattr(analyses, "ConsoleWatcher", stopping)
    assert analyses.main(words) == 0
    with zipfile.ZipFile(tmp_path / "pi.zip") as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "back")
    for name in ("late/pairs", "schedule/schedule", "teachers/teachers"):
        assert {f"analysis/{name}.{kind}" for kind in ("json", "csv", "svg", "png")} <= {*names}
    assert not any(name.endswith(".safetensors") for name in names)
    back = tmp_path / "back"
    [first, second] = json.loads((back / "analysis" / "late" / "pairs.json").read_text())
    assert (first["run"], second["run"]) == ("pi", "other")
    # What came back is enough to study what was recorded, and to draw what was measured.
    answer = command("analyze", "teachers", back / "pi", back / "other", "--out", tmp_path / "again")
    assert answer.code == 0, answer.err
    same = command("analyze", "pairs", back / "analysis" / "late" / "pairs.json", "--out", tmp_path / "again")
    assert same.code == 0, same.err
    for kind in ("csv", "svg"):
        assert (tmp_path / "again" / f"pairs.{kind}").read_text() == (
            back / "analysis" / "late" / f"pairs.{kind}"
        ).read_text()


def test_a_study_that_breaks_leaves_the_others_to_be_made(
    analyses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = dataclasses.replace(tiny_part(analyses), forks=None)
    part = dataclasses.replace(part, studies=tuple(made for made in part.studies if made.name != "schedule"))
    monkeypatch.setattr(analyses, "PARTS", {"pi": part})

    def broken(study: object, request: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("fastswa.analysis.pairs.study", broken)
    words = ["pi", "--device", "cpu", "--runs", str(tmp_path / "runs"), "--batch.steps", "2"]
    assert analyses.main(words) == 1
    said = capsys.readouterr()
    assert "pi, late: failed; the others are made." in said.err
    assert "out of memory" in said.err
    assert json.loads(said.out.splitlines()[-1])["done"] is False
    with zipfile.ZipFile(tmp_path / "runs" / "pi.zip") as archive:
        assert "analysis/teachers/teachers.png" in archive.namelist()
        # The words that are not the script's own are settings of every run.
        for run in ("pi", "other"):
            assert tomllib.loads(archive.read(f"{run}/config.toml").decode())["batch"]["steps"] == 2
    monkeypatch.undo()


def test_what_cannot_be_trained_is_refused(
    analyses: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyses.main(["pi", "--batch.stps", "2"]) == 2
    assert "batch.steps" in capsys.readouterr().err
    assert analyses.main(["pi", "--runs", str(tmp_path / "runs"), "--data", str(tmp_path), "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "there is no CIFAR-10 under" in said
    assert "goes on" not in said


def archives_of(finished: Path, tmp_path: Path, *names: str, reach: dict[str, float] | None = None) -> list[Path]:
    """An archive a run, all of them the same run under other names, each with one study; with `reach` rays so far."""
    archives = []
    for name in names:
        run = tmp_path / name / name
        shutil.copytree(finished, run)
        [found] = pairs(Request((run,), "cpu", epochs=(2.0, 4.0)))
        (tmp_path / name / "analysis" / "diversity").mkdir(parents=True)
        (tmp_path / name / "analysis" / "diversity" / "pairs.json").write_text(json.dumps(plain([found])))
        if reach is not None:
            far = made_rays(Request((run,), "cpu", epochs=(2.0, 4.0), distance=reach[name], points=5, rays=1))
            (tmp_path / name / "analysis" / "rays").mkdir()
            (tmp_path / name / "analysis" / "rays" / "rays.json").write_text(json.dumps(plain(far)))
        archives.append(tmp_path / f"{name}.zip")
        with zipfile.ZipFile(archives[-1], "w") as archive:
            for file in sorted((tmp_path / name).rglob("*.*")):
                if file.suffix in (".json", ".jsonl", ".toml"):
                    archive.write(file, file.relative_to(tmp_path / name))
    return archives


def test_configurations_are_the_recipes_own(analyses: ModuleType) -> None:
    config: Config = analyses.PARTS["pi"].runs["pi"].config({"seed": 10})
    assert (config.schedule.epochs, config.checkpoint.keep_every, config.checkpoint.keep_from) == (330, 3, 180)
    assert (config.model.name, config.split.labels, config.seed) == ("cnn13", 4000, 10)


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The page's writer, at work on a copy of the page."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("write_analysis")
    (tmp_path / "docs").mkdir()
    shutil.copy(module.PAGE, tmp_path / "docs" / "analysis.md")
    for name, path in {"HOME": "", "PAGE": "docs/analysis.md", "FIGURES": "figures", "RESULTS": "results"}.items():
        monkeypatch.setattr(module, name, tmp_path / path)
    return module


def test_the_page_says_what_is_kept_of_the_analyses(writer: ModuleType) -> None:
    page = (ROOT / "docs" / "analysis.md").read_text("utf-8")
    assert writer.filled(page, writer.sections(ROOT / "results" / "analysis")) == page, (
        "run `python benchmarks/write_analysis.py`"
    )


def test_archives_come_onto_the_page_one_after_the_other(
    writer: ModuleType, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = archives_of(finished, tmp_path, "pi", "supervised")
    assert writer.main([str(first)]) == 0
    page = writer.PAGE.read_text("utf-8")
    assert "- pi: epochs 2 and 4: distance" in page
    assert "- Not made yet: supervised, mean-teacher." in page
    assert writer.main([str(second)]) == 0
    assert [one.run for one in writer.kept("diversity", writer.RESULTS)] == ["supervised", "pi"]
    page = writer.PAGE.read_text("utf-8")
    assert page.index("- supervised: epochs 2 and 4") < page.index("- pi: epochs 2 and 4")
    assert "- Not made yet: mean-teacher." in page
    assert (writer.FIGURES / "cifar10-diversity.svg").exists()
    assert not list(writer.FIGURES.glob("*.png"))
    assert page.count("Not made yet.") == len(writer.SHOWN) - 1
    # Of the runs that teachers compares only pi is there, and it was measured at neither epoch.
    assert "not all measured" in capsys.readouterr().err
    assert writer.main([str(tmp_path / "none.zip")]) == 2
    assert "is no archive of a part" in capsys.readouterr().err


def test_rays_of_older_archives_join_those_that_go_further(writer: ModuleType, finished: Path, tmp_path: Path) -> None:
    older = archives_of(finished, tmp_path, "supervised", "pi", reach={"supervised": 30, "pi": 30})
    newer = archives_of(finished, tmp_path, "pi-0", reach={"pi-0": 60})
    assert writer.main(list(map(str, [*older, *newer]))) == 0
    found = writer.kept("unlabelled", writer.RESULTS)
    reached = {one.run: max(ray.distance[-1] for ray in one.rays if ray.kind == "random") for one in found}
    assert reached == {"supervised": 30, "pi-0": 60, "pi": 30}
    assert (writer.FIGURES / "cifar10-unlabelled.svg").exists()
