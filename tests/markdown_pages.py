"""The parts of a Markdown page that can be wrong: its fenced blocks, its inline code, its headings and its links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Fence:
    """A fenced block: the words after its backticks, its text, and the line of the page that it begins at."""

    words: tuple[str, ...]
    text: str
    line: int

    @property
    def language(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def needs(self) -> str | None:
        """What a reader must have for it beside the package; None where the block is executed."""
        return next((word for word in self.words[1:] if word.startswith("needs-")), None)

    def commands(self) -> Iterator[tuple[int, str]]:
        """(line of the page, command) of a block of shell commands, comments left out."""
        lines = self.text.splitlines()
        for number, line in enumerate(lines):
            if number and lines[number - 1].endswith("\\"):
                continue
            following = number
            while lines[following].endswith("\\"):
                following += 1
                line = line.removesuffix("\\") + lines[following]
            if words := shlex.split(line, comments=True):
                whole = line if {"|", ">", "&&", ";"} & set(words) else shlex.join(words)
                yield self.line + 1 + number, whole


@dataclass(frozen=True)
class Page:
    """A page and what stands in it; `prose` is its text with the fenced blocks blanked out."""

    path: Path
    fences: tuple[Fence, ...]
    prose: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else self.path.name

    def inline_code(self) -> Iterator[tuple[int, str]]:
        """(line, text) of what stands between single backticks."""
        for number, line in enumerate(self.prose.splitlines(), 1):
            for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", line):
                yield number, found[1]

    def links(self) -> Iterator[tuple[int, str]]:
        """(line, target) of links and pictures, Markdown's and HTML's."""
        for number, line in enumerate(re.sub(r"`[^`\n]*`", "", self.prose).splitlines(), 1):
            for found in re.finditer(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", line):
                yield number, found[1] or found[2]

    def anchors(self) -> set[str]:
        """What `#…` can name, as GitHub makes it from headings."""
        found: dict[str, int] = {}
        for heading in re.findall(r"^#+ +(.+?) *$", self.prose, re.MULTILINE):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            count = found[slug] = found.get(slug, -1) + 1
            if count:
                found[f"{slug}-{count}"] = 0
        return found.keys() | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", self.prose))


def read_page(path: Path) -> Page:
    """A page in parts."""
    fences: list[Fence] = []
    prose: list[str] = []
    opened: tuple[int, str, tuple[str, ...], list[str]] | None = None
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        mark = re.match(r" *(`{3,})(.*)", line)
        prose.append("" if opened or mark else line)
        if opened is None:
            if mark:
                opened = (number, mark[1], tuple(mark[2].split()), [])
        elif mark and mark[1] == opened[1] and not mark[2].strip():
            fences.append(Fence(opened[2], "\n".join(opened[3]), opened[0]))
            opened = None
        else:
            opened[3].append(line)
    assert opened is None, f"{path}: the block of line {opened[0]} is never closed"
    return Page(path, tuple(fences), "\n".join(prose))
