"""Calibration, confusions, thumbnails, words, and the choice of what to label next."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from fastswa.calibrate import expected_calibration_error
from fastswa.report import words
from fastswa.report.calibration import reliability
from fastswa.report.confusion import class_figures, confusion_matrix, largest_mixups
from fastswa.report.predictions import Predictions
from fastswa.report.suggest import suggest
from fastswa.report.thumbnails import matrix_picture, thumbnail


def test_reliability_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(4, 0.4), 3000)
    probabilities[:3] = np.eye(4)[:3]  # exactly sure
    labels = rng.integers(0, 4, 3000)
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    found = reliability(confidence, correct)
    total = 0.0
    for number, b in enumerate(found.bins):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        assert b.count == inside.sum()
        if b.count:
            assert b.confidence == pytest.approx(confidence[inside].mean())
            assert b.accuracy == pytest.approx(correct[inside].mean())
            total += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert found.ece == pytest.approx(total)
    assert found.ece == pytest.approx(expected_calibration_error(probabilities, labels))
    assert (found.confidence, found.accuracy) == pytest.approx((confidence.mean(), correct.mean()))


def test_reliability_of_nothing_and_of_certainty() -> None:
    assert reliability(np.zeros(0), np.zeros(0, bool)).ece == 0.0
    sure = reliability(np.ones(4), np.array([True, True, True, False]))
    assert (sure.ece, sure.bins[-1].count) == (0.25, 4)


def test_the_confusion_matrix_and_its_largest_entries() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2])
    said = np.array([0, 0, 1, 1, 1, 0, 2, 2, 2, 2, 1, 1])
    matrix = confusion_matrix(labels, said, 4)
    assert matrix.tolist() == [[2, 2, 0, 0], [1, 1, 0, 0], [0, 2, 4, 0], [0, 0, 0, 0]]
    # Two of four outweigh two of six.
    found = [(m.true, m.said, m.count, m.share) for m in largest_mixups(matrix, 2)]
    assert found == [(0, 1, 2, 0.5), (2, 1, 2, pytest.approx(1 / 3))]
    assert len(largest_mixups(matrix, 10)) == 3
    assert largest_mixups(np.diag([3, 4]), 10) == []
    figures = class_figures(matrix)
    assert [(f.images, f.wrong, f.taken, f.mostly) for f in figures] == [
        (4, 2, 1, 1),
        (2, 1, 4, 0),
        (6, 2, 0, 1),
        (0, 0, 0, None),
    ]
    assert figures[1].error == 50.0
    assert np.isnan(figures[3].error)


def decoded(uri: str) -> Image.Image:
    head, _, body = uri.partition(",")
    assert head in ("data:image/png;base64", "data:image/jpeg;base64")
    return Image.open(io.BytesIO(base64.b64decode(body)))


@pytest.mark.parametrize("channels", [1, 3])
def test_small_thumbnails_are_exact(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (channels, 28, 20), dtype=np.uint8)
    back = np.asarray(decoded(thumbnail(pixels)))
    assert np.array_equal(back, pixels[0] if channels == 1 else pixels.transpose(1, 2, 0))


def test_large_thumbnails_are_reduced_and_strange_channels_shown_as_grey_or_rgb() -> None:
    smooth = np.broadcast_to(np.linspace(0, 255, 224).astype(np.uint8), (3, 112, 224))
    picture = decoded(thumbnail(smooth))
    assert (picture.format, picture.size) == ("JPEG", (96, 48))
    assert decoded(thumbnail(smooth[:2, :8, :8])).mode == "L"
    assert decoded(thumbnail(np.zeros((4, 8, 8), np.uint8))).mode == "RGB"


def test_a_matrix_of_many_classes_is_a_pixel_a_cell() -> None:
    matrix = np.diag(np.full(300, 9))
    matrix[0, 5] = 3
    cells = np.asarray(decoded(matrix_picture(matrix)))
    assert cells.shape == (300, 300, 4)
    assert cells[1, 1].tolist() == [9, 105, 218, 255]
    assert cells[0, 5].tolist() == [207, 34, 46, round(255 * 0.25**0.5)]
    assert cells[0, 0, 3] == round(255 * 0.75**0.5)
    assert not cells[2, 3].any()


def test_a_thousand_classes_stay_small() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(1000), 50)
    said = np.where(rng.random(len(labels)) < 0.7, labels, rng.integers(0, 1000, len(labels)))
    assert len(matrix_picture(confusion_matrix(labels, said, 1000))) < 200_000


def predictions(first: list[int], margin: list[float]) -> Predictions:
    ahead = np.array(margin)
    return Predictions(np.array(first), (1 + ahead) / 2, (np.array(first) + 1) % 3, (1 - ahead) / 2)


def unit(*angles: float) -> np.ndarray:
    turned = np.deg2rad(angles)
    return np.stack([np.cos(turned), np.sin(turned)], axis=1)


def test_suggestions_are_spread_over_the_classes_the_rarest_first() -> None:
    said = predictions([0] * 6 + [1] * 3 + [2], [0.0] * 10)
    angles = unit(*range(0, 100, 10))
    chosen = suggest(said, lambda rows: angles[rows], angles[:0], np.array([5, 9, 2]), 7)
    assert said.first[chosen].tolist() == [2, 0, 1, 0, 1, 0, 1]
    assert len(set(chosen.tolist())) == 7
    rest = suggest(said, lambda rows: angles[rows], angles[:0], np.array([5, 9, 2]), 50)
    assert sorted(rest.tolist()) == list(range(10))


def test_suggestions_are_uncertain_and_unlike_one_another_and_the_labelled() -> None:
    said = predictions([0] * 5, [0.0, 0.0, 0.0, 0.02, 0.75])
    # 0 and 1 are the same picture, 2 lies beside the labelled image, 3 and 4 are alone; 4 is nearly certain.
    angles = unit(90, 90, 1, 180, 180.001)
    chosen = suggest(said, lambda rows: angles[rows], unit(0), np.array([1, 0, 0]), 5)
    assert chosen[:2].tolist() == [3, 0]
    assert set(chosen[2:].tolist()) == {1, 2, 4}
    assert chosen[2] == 2  # the copies' distance is nothing


def test_what_the_model_is_sure_of_is_not_suggested() -> None:
    margin = np.concatenate([np.linspace(0.0, 0.5, 100), np.full(900, 0.99)])
    said = predictions([0] * 50 + [1] * 950, margin.tolist())
    angles = unit(*np.linspace(0, 359, 1000))
    chosen = suggest(said, lambda rows: angles[rows], angles[:0], np.array([1, 1, 1]), 20)
    assert len(chosen) == 20
    assert (margin[chosen] <= 0.5).all()


def test_suggestions_of_nothing() -> None:
    said = predictions([], [])
    nothing = suggest(said, lambda rows: np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(3), 5)
    assert nothing.tolist() == []


def test_numbers_in_words() -> None:
    assert [words.share(v) for v in (1.0, 0.99999, 0.999, 0.12345, 0.0)] == [
        "100.0%",
        ">99.9%",
        "99.9%",
        "12.3%",
        "0.0%",
    ]
    assert words.share(0.9999, 0) == ">99%"
    assert [words.points(v) for v in (0.4, -0.4, 0.0, -0.001, None, float("nan"))] == [
        *("+0.40", "−0.40", "0.00", "0.00"),
        *("–", "–"),
    ]
    assert words.percent(None) == words.percent(float("inf")) == "–"
    assert [words.duration(s) for s in (0.04, 59.94, 60, 3661, float("nan"))] == [
        *("0.0 s", "59.9 s", "1 min 0 s"),
        *("1 h 1 min", "–"),
    ]
    assert [words.plural(n, "image") for n in (0, 1, 12000)] == ["0 images", "1 image", "12,000 images"]
    assert words.listed(["a", "b", "c"], 2) == "‘a’, ‘b’ and 1 more"
    assert [words.setting(v) for v in (True, [1, 2], [], 0.5, "x")] == ["true", "1,2", "–", "0.5", "x"]


def test_names_that_cannot_be_shown_are_made_readable() -> None:
    assert words.readable("caf\udce9\n\x00 \u202fé\u200d") == "caf\ufffd\ufffd\ufffd \u202fé\u200d"
    assert words.readable("ok/ü 日本.png") == "ok/ü 日本.png"


def test_long_paths_lose_their_middle() -> None:
    long = "unlabelled/2019/spring/holidays/and/much/more/picture-0001.png"
    short = words.shortened(long)
    assert len(short) <= 44
    assert short.startswith("unlabelled/")
    assert short.endswith("…/picture-0001.png")
    assert words.shortened("x" * 100) == "…" + "x" * 43
    assert words.shortened("a/b.png") == "a/b.png"
