"""The report of a run on two domains: both errors, agreement, and the target's images as those to label next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from report_checks import check

from fastswa.data.sources.digits import load_digits
from fastswa.predict import part_of_run
from fastswa.report.write import write_report
from fastswa.training.run import train_new
from tiny_runs import StoppingWatcher, metrics, tiny


def test_a_run_on_two_domains(tmp_path: Path) -> None:
    digits = load_digits()
    assert digits.test is not None
    negative = 255 - digits.train.pixels[:200, 0]
    target = tmp_path / "target.npz"
    np.savez(target, x_unlabelled=negative, x_test=255 - digits.test.pixels[:50, 0], y_test=digits.test.labels[:50])
    out = tmp_path / "run"
    method = {"name": "self-ensembling", "weight": 3, "threshold": 0.11}
    config = tiny({"data": {"target": str(target)}, "split": {"labels": 300}, "method": method})
    train_new(config, out, StoppingWatcher(), print)
    page = check(write_report(out).report.read_text("utf-8"))
    captions = page.text("figcaption")
    assert captions[0].startswith("Error on the target's test images;")
    assert captions[1].startswith("Error on the source's test images;")
    assert any(caption.startswith("Agreement on the target:") for caption in captions)
    last = metrics(out)[-1]
    assert f"{last['source_error']['teacher']:.2f}%" in page.words
    assert "On 500 source images an error of" in page.words
    assert "300 labelled, 200 unlabelled, 50 test, 500 for test in the source" in page.words
    assert (out / "label-next.csv").is_file()
    unlabelled = part_of_run(out, "unlabelled")
    chunk = next(iter(unlabelled.chunks((1, 8, 8), 0)))
    assert len(unlabelled) == 200
    assert np.array_equal(chunk.pixels[:, 0], negative[: len(chunk.pixels)])
    assert chunk.names[0].startswith(f"{target}:train")
