"""Pages in a real browser: no sideways scrolling on a phone, nothing that runs, light, dark and on paper."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_runs import NASTY_CLASS, folder, train_own

from fastswa.report.write import write_comparison, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

# Run in a page around the report, whose own policy lets no script run: it measures the report in a frame.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><iframe id="frame" src="{report}" width="{width}" height="900"></iframe>
<pre id="answer"></pre>
<script>
document.getElementById("frame").addEventListener("load", event => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const shown = element => element.getClientRects().length > 0;
  const beyond = element => element.getBoundingClientRect().right > root.clientWidth + 1;
  const outside = [...page.querySelectorAll("body *")].filter(element =>
    shown(element) && !element.closest(".scroll, svg, .skip") && beyond(element));
  const reached = [...page.querySelectorAll("a[href], summary, [tabindex='0']")].filter(shown);
  const small = [...page.querySelectorAll(".chart text")].map(text => text.getBoundingClientRect().height);
  document.getElementById("answer").textContent = JSON.stringify({{
    width: root.clientWidth, scroll: root.scrollWidth,
    outside: outside.slice(0, 5).map(element => element.outerHTML.slice(0, 120)),
    broken: [...page.images].filter(image => image.complete && !image.naturalWidth).length,
    images: page.images.length,
    first: reached[0].className, reached: reached.length,
    text: Math.min(...small),
    title: page.title,
  }});
}});
</script>
"""


def browse(*words: object) -> str:
    """What headless Chromium prints."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    command = [CHROMIUM, *flags, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def measured(report: Path, width: int) -> dict[str, Any]:
    probe = report.with_name(f"probe-{width}.html")
    probe.write_text(PROBE.format(report=report.name, width=width), "utf-8")
    # Two pages on one disk count as strangers to one another unless told otherwise.
    dom = browse("--allow-file-access-from-files", "--virtual-time-budget=10000", "--dump-dom", probe.as_uri())
    (answer,) = re.findall(r'<pre id="answer">(.*?)</pre>', dom, re.DOTALL)
    found: dict[str, Any] = json.loads(html.unescape(answer))
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with hostile names and a long one, and a comparison."""
    place = tmp_path_factory.mktemp("pages")
    data = folder(place / "data")
    first = data / "unlabeled" / "deep" / "1.png"
    first.rename(first.with_name("a" * 200 + ".png"))
    run = train_own(data, place / "a-run-with-a-name-that-is-much-too-long-for-the-screen-of-a-phone-of-any-size")
    other = train_own(data, place / "other", {"method": {"name": "pi"}})
    return {
        "run": write_report(run).report,
        "comparison": write_comparison([run, other], place / "comparison.html").report,
    }


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["run", "comparison"])
def test_nothing_sticks_out(reports: dict[str, Path], name: str, width: int) -> None:
    found = measured(reports[name], width)
    assert found["width"] == width
    assert found["scroll"] == width
    assert found["outside"] == []
    assert found["broken"] == 0
    assert (found["images"] > 20) == (name == "run")
    assert found["first"] == "skip"
    assert found["reached"] > 5
    assert found["text"] >= 11  # pixels: the smallest letters of a chart


def test_hostile_names_do_not_run(reports: dict[str, Path]) -> None:
    dom = browse("--virtual-time-budget=5000", "--dump-dom", reports["run"].as_uri())
    assert html.escape(NASTY_CLASS, quote=False) in dom
    assert "<script" not in dom
    assert "onerror" not in re.sub(r"&lt;img src=x onerror=alert\(1\)&gt;", "", dom)


def test_light_and_dark(reports: dict[str, Path], tmp_path: Path) -> None:
    corners = {}
    for theme, flags in (("light", []), ("dark", ["--blink-settings=preferredColorScheme=0"])):
        shot = tmp_path / f"{theme}.png"
        browse(*flags, "--window-size=390,800", f"--screenshot={shot}", reports["run"].as_uri())
        corners[theme] = np.asarray(Image.open(shot).convert("L"))[2, 2]
    assert corners["light"] == 255
    assert corners["dark"] < 40


def test_it_prints(reports: dict[str, Path], tmp_path: Path) -> None:
    paper = tmp_path / "report.pdf"
    browse("--no-pdf-header-footer", f"--print-to-pdf={paper}", reports["run"].as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
    assert 2 <= pages <= 8
