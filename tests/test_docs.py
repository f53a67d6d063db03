"""README.md and docs/ do what they say: commands run, output looks as printed, links lead somewhere.

A fenced block says what it is by the word after its backticks, and is executed where that is `sh` or `python`:

    sh, python              run in the order of the page, in a folder that holds what the guide leaves behind
    sh needs-network        not run, as is `needs-gpu`; its commands must still be ones that fastswa knows
    python fragment         not run, but compiled
    text output             lines that the commands above print, but for their numbers; … stands for anything
    text, toml, csv, …      shown only

Nothing else is let through, so a command that cannot be run has to say so on the page. Commands are run as they
stand; what is cut to a few steps is the training underneath, and to a few points the studies (`short_runs`).
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastswa
from fastswa import classifier, cli, demo
from fastswa.analysis.asked import Asked
from fastswa.analysis.study import Request
from fastswa.arguments import Arguments
from fastswa.config import Config
from fastswa.data.sources import is_own_data
from fastswa.data.sources.digits import load_digits
from fastswa.layers import ALIASES, fields, flag_layer, recipe_names
from fastswa.methods import METHODS
from fastswa.training import budget
from fastswa.training.run import NewRun
from markdown_pages import PAGES, ROOT, Fence, Page, read_page

README, GUIDE = ROOT / "README.md", ROOT / "docs" / "guide.md"
NEEDS = {"needs-network", "needs-gpu"}
SHOWN = {"text", "toml", "csv", "json", "ini"}
# Programs beside fastswa and python that pages may call; others would need a network or change the machine.
TOOLS = {"awk", "cp", "head", "ls", "mkdir", "mv"}

pages = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def shortened(config: Config) -> Config:
    """Epochs of one step, evaluated at the end alone, of a network that is thin where it may be."""
    sections: dict[str, Any] = {
        "batch": config.batch.model_copy(update={"steps": 1}),
        "evaluation": config.evaluation.model_copy(update={"every": 1000, "refresh": 1}),
        "checkpoint": config.checkpoint.model_copy(update={"every": 1000}),
        "analysis": config.analysis.model_copy(update={"batches": 2}),
    }
    if config.model.name == "small" and config.model.width is None:
        sections["model"] = config.model.model_copy(update={"width": 4})
    return config.model_copy(update=sections)


def small_study(request: Request) -> Request:
    """The same study of the same runs, at a few points."""
    return replace(request, points=5, rays=1, pairs=3, images=2, draws=2, batches=2)


@contextlib.contextmanager
def short_runs() -> Iterator[None]:
    """Inside, every new run takes as many epochs as it is told, but of one step each; studies look at little."""
    settings, in_memory, request = NewRun.settings, classifier.train_in_memory, Asked.request
    fitted, measure = budget.fitted, budget.measure

    def in_this_process(jobs: Sequence[demo.Job], workers: int, title: str) -> list[list[dict[str, Any]]]:
        return [demo.train_job(job) for job in jobs]

    def short_shape(*words: Any, **named: Any) -> budget.Shape:
        return replace(fitted(*words, **named), epochs=60, steps=1, evaluate_every=60, checkpoint_every=60, refresh=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NewRun, "settings", lambda run: shortened(settings(run)))
        patch.setattr(budget, "fitted", short_shape)
        patch.setattr(budget, "measure", lambda trainer, seconds: measure(trainer, 0.01))
        patch.setattr(demo, "train_side_by_side", in_this_process)
        patch.setattr(Asked, "request", lambda asked, *words: small_study(request(asked, *words)))
        patch.setattr(classifier, "train_in_memory", lambda config, *rest: in_memory(shortened(config), *rest))
        yield


class Reader:
    """Does what pages say, in a folder, and keeps what was printed since the last output shown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard = ""

    def read(self, page: Page) -> None:
        names: dict[str, Any] = {"__name__": "__main__"}
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            with short_runs():
                for fence in page.fences:
                    self._do(page, fence, names)
        finally:
            os.chdir(before)

    def _do(self, page: Page, fence: Fence, names: dict[str, Any]) -> None:
        if fence.words == ("text", "output"):
            self._compare(page, fence)
        elif fence.words == ("sh",):
            for line, command in fence.commands():
                code, said = self._run(command)
                assert code == 0, f"{page.name}, line {line}: `{command}` ended with {code}:\n{said}"
                self.heard += said
        elif fence.words == ("python",):
            code = compile("\n" * fence.line + fence.text, page.path, "exec")
            with _listening() as stream:
                exec(code, names)
            self.heard += stream.getvalue()

    def _run(self, command: str) -> tuple[int, str]:
        words = shlex.split(command)
        shell = {"|", ">", "&&", ";"} & set(words)
        if words[0] == "fastswa" and not shell:
            with _listening() as stream:
                code = cli.main(words[1:])
            return code, stream.getvalue()
        assert words[0] in TOOLS | {"python", "fastswa"}, f"`{command}`: mark its block with one of {sorted(NEEDS)}"
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            command, shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    def _compare(self, page: Page, fence: Fence) -> None:
        heard = {_skeleton(line) for line in self.heard.splitlines()}
        for number, line in enumerate(fence.text.splitlines(), fence.line + 1):
            pattern = re.escape(_skeleton(line)).replace("…", ".*")
            assert any(re.fullmatch(pattern, other) for other in heard), (
                f"{page.name}, line {number}: nothing above prints\n{line}\nbut\n{self.heard}"
            )
        self.heard = ""


@contextlib.contextmanager
def _listening() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield stream


def _skeleton(line: str) -> str:
    """A line without what differs between two runs: numbers, seconds or their thousandths, the width of columns."""
    plain = re.sub(r"[┏┳┓┡╇┩├┼┤└┴┘━─]+", "─", line)
    plain = re.sub(r"(?:(?<=\s)[+-])?[0-9]+(?:[.,:][0-9]+)*(?:e[+-]?[0-9]+)?", "0", plain)
    return " ".join(re.sub(r"\b0 ms\b", "0 s", plain).split())


@pytest.fixture(scope="module")
def after_the_guide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which somebody followed the guide."""
    folder = checkout(tmp_path_factory.mktemp("guide"))
    Reader(folder).read(read_page(GUIDE))
    return folder


def checkout(folder: Path) -> Path:
    """A folder with what the repository has for commands to use."""
    (folder / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(ROOT / "results", folder / "results")
    return folder


def test_the_folder_of_the_guide_holds_the_digits(after_the_guide: Path) -> None:
    """Each of them once and as it is, ten of a class with their label."""
    digits, folder = load_digits(), after_the_guide / "my-images"
    assert digits.test is not None
    numbers: dict[str, list[int]] = {"labeled": [], "unlabeled": [], "test": []}
    for file in folder.glob("[!.]*/**/*.png"):
        part, number = file.relative_to(folder).parts[0], int(file.stem)
        images = digits.test if part == "test" else digits.train
        with Image.open(file) as picture:
            assert np.array_equal(picture, images.pixels[number, 0])
        assert part == "unlabeled" or file.parent.name == digits.classes[images.labels[number]]
        numbers[part].append(number)
    assert sorted(numbers["labeled"] + numbers["unlabeled"]) == list(range(len(digits.train)))
    assert sorted(numbers["test"]) == list(range(len(digits.test)))
    assert np.bincount(digits.train.labels[numbers["labeled"]]).tolist() == [10] * 10


def test_what_the_readme_says_works(tmp_path: Path) -> None:
    Reader(checkout(tmp_path)).read(read_page(README))


@pytest.mark.parametrize("path", [path for path in PAGES if path != README], ids=lambda path: path.name)
def test_what_a_page_says_works(path: Path, after_the_guide: Path, tmp_path: Path) -> None:
    if path != GUIDE:  # it was read to make the folder
        folder = shutil.copytree(after_the_guide, tmp_path / "folder", symlinks=True)
        Reader(folder).read(read_page(path))


WRONG = {
    "```sh\nfastswa recipes digits-py\n```": "line 2: `fastswa recipes digits-py` ended with 2:",
    "```sh\nls nothing-there\n```": "`ls nothing-there` ended with",
    "```sh\npip install timm  # needs a network\n```": "`pip install timm`: mark its block with one of",
    "```sh\nfastswa --version\n```\n```text output\nslowswa 0.1.0\n```": "line 5: nothing above prints",
    "```python\nprint(undefined)\n```": "name 'undefined' is not defined",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=range(len(WRONG)))
def test_a_page_that_is_wrong_is_found_out(text: str, message: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    with pytest.raises((AssertionError, NameError), match=re.escape(message)):
        Reader(tmp_path).read(read_page(page))


def test_commands_are_told_from_comments_and_go_on_after_a_backslash() -> None:
    text = "fastswa train a \\\n  --epochs 3  # why\n# a remark\nawk '$1 > 2' a.csv > b.csv"
    commands = [(4, "fastswa train a --epochs 3"), (7, "awk '$1 > 2' a.csv > b.csv")]
    assert list(Fence(("sh",), text, line=3).commands()) == commands


@pages
def test_every_block_says_what_it_is(path: Path) -> None:
    page = read_page(path)
    for fence in page.fences:
        where, rest = f"{page.name}, line {fence.line}: {fence.words}", set(fence.words[1:])
        if fence.language == "sh":
            assert rest <= NEEDS, where
        elif fence.language == "python":
            assert rest <= NEEDS | {"fragment"}, where
        else:
            assert fence.language in SHOWN, where
            assert not rest or fence.words == ("text", "output"), where


@pages
def test_what_is_not_run_is_still_right(path: Path) -> None:
    """Commands that need a network or a GPU name verbs, options, settings and recipes that exist; fragments compile."""
    page = read_page(path)
    for fence in page.fences:
        if fence.language == "python" and len(fence.words) > 1:
            compile(fence.text, f"{page.name}:{fence.line}", "exec")
        elif fence.language == "sh" and fence.needs:
            for _, command in fence.commands():
                for part in command.split("&&"):
                    words = shlex.split(part, comments=True)
                    if words[0] == "fastswa":
                        _refuse_unknown(words[1:])


def _refuse_unknown(words: Sequence[str]) -> None:
    name, *rest = words
    arguments = Arguments(name, cli.VERBS[name], rest)
    flag_layer(arguments.settings, arguments.verb.options)
    if name == "train":
        for target in arguments.targets:
            assert target in (*recipe_names(), "my-images") or is_own_data(target), target


def known_options() -> set[str]:
    own = {option for verb in cli.VERBS.values() for option in verb.options}
    return {*own, *(f"--{name}" for name in (*dict(fields()), *ALIASES)), "--help", "--debug", "--version"}


@pages
def test_commands_and_settings_named_in_passing_exist(path: Path) -> None:
    page, settings = read_page(path), dict(fields())
    sections = {name.partition(".")[0] for name in settings} - {"model"}
    for line, text in page.inline_code():
        where = f"{page.name}, line {line}: {text}"
        if verb := re.match(r"fastswa ([a-z]+)", text):
            assert verb[1] in cli.VERBS, where
        for option in re.findall(r"(?<!\S)--[a-z][\w.-]*", text):
            name = re.sub(r"^(--averaging)\.\w+", r"\1.NAME", option.rstrip("."))
            assert name in known_options() or "pip" in text, where
        dotted = re.fullmatch(r"([a-z]+)\.(?!py|md)[a-z_]+", text)
        if dotted and dotted[1] in sections:
            assert text in settings, where


@pages
def test_links_lead_somewhere(path: Path) -> None:
    page = read_page(path)
    for line, target in page.links():
        if re.match(r"[a-z]+:", target):
            continue
        where = f"{page.name}, line {line}: {target}"
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), where
        assert there.is_relative_to(ROOT), where
        if anchor:
            assert anchor in read_page(there).anchors(), where


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for _, target in read_page(index).links()}
    assert {path for path in PAGES if path.parent == index.parent and path != index} <= linked


def sentences_in_source() -> list[str]:
    """Every text in the package, … standing for what is filled in."""
    texts = []
    for file in sorted((ROOT / "src" / "fastswa").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_sentences_under_troubleshooting_are_still_said() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", page)
    assert len(quoted) > 50
    said = sentences_in_source()
    for sentence in quoted:
        stems = [stem.strip() for stem in sentence.split("…") if stem.strip(" .:;")]
        pattern = re.compile(".*".join(map(re.escape, stems)), re.DOTALL)
        assert any(pattern.search(text) for text in said), sentence


def test_the_reference_is_what_the_docstrings_say() -> None:
    make_api = runpy.run_path(str(ROOT / "docs" / "make_api.py"))
    assert (ROOT / "docs" / "api.md").read_text("utf-8") == make_api["page"](), "run `python docs/make_api.py`"
    listed = {thing.__name__ for things in make_api["PARTS"].values() for thing in things}
    assert set(dir(fastswa)) - {"__version__"} <= listed


def test_the_setting_method_name_lists_the_methods() -> None:
    description = dict(fields())["method.name"].description
    assert set(re.split(r", | or ", description)) == set(METHODS)
