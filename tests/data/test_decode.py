"""Decoding: every mode against colours known beforehand, and files that are refused."""

from __future__ import annotations

import itertools
import os
import re
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastswa.data import decode, workers
from fastswa.data.decode import read_array, read_header, read_image, read_picture
from fastswa.data.workers import BAD, COLOUR, GREY, UNREADABLE, WRITTEN, Task, Workers
from fastswa.errors import RequestError, RunError

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
# ITU-R 601: 0.299 R + 0.587 G + 0.114 B.
LUMA = {RED: 76, GREEN: 150, BLUE: 29}


def save(folder: Path, image: Image.Image, name: str = "a.png", **options: object) -> str:
    path = folder / name
    image.save(path, **options)
    return str(path)


def corners(height: int = 8, width: int = 12) -> np.ndarray:
    """(H, W, 3): red, green, blue and white quarters, row by row."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2], picture[: height // 2, width // 2 :] = RED, GREEN
    picture[height // 2 :, : width // 2], picture[height // 2 :, width // 2 :] = BLUE, WHITE
    return picture


def at_corners(pixels: np.ndarray) -> list[tuple[int, ...]]:
    """The colours top left, top right, bottom left, bottom right of (C, H, W)."""
    return [tuple(int(v) for v in pixels[:, y, x]) for y in (0, -1) for x in (0, -1)]


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.webp"])
def test_lossless_rgb_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    path = save(tmp_path, Image.fromarray(picture), name, **({"lossless": True} if name == "a.webp" else {}))
    np.testing.assert_array_equal(read_image(path, channels=3), picture.transpose(2, 0, 1))
    assert read_header(path) == (5, 7, False)


def test_jpeg_colours(tmp_path: Path) -> None:
    path = save(tmp_path, Image.fromarray(corners(32, 32)), "a.jpg", quality=95, subsampling=0)
    for found, wanted in zip(at_corners(read_image(path, channels=3)), (RED, GREEN, BLUE, WHITE), strict=True):
        np.testing.assert_allclose(found, wanted, atol=4)


def test_grey_stays_grey_and_becomes_rgb_on_request(tmp_path: Path) -> None:
    picture = np.arange(20, dtype=np.uint8).reshape(4, 5)
    path = save(tmp_path, Image.fromarray(picture))
    assert read_header(path) == (4, 5, True)
    np.testing.assert_array_equal(read_image(path, channels=1), picture[None])
    np.testing.assert_array_equal(read_image(path, channels=3), np.stack([picture] * 3))


@pytest.mark.parametrize("colour", [RED, GREEN, BLUE])
def test_grey_of_a_colour_is_its_luma(colour: tuple[int, int, int], tmp_path: Path) -> None:
    path = save(tmp_path, Image.new("RGB", (3, 2), colour))
    assert np.unique(read_image(path, channels=1)).tolist() == [LUMA[colour]]


def test_one_bit_images(tmp_path: Path) -> None:
    path = save(tmp_path, Image.fromarray(np.array([[True, False], [False, True]])))
    assert read_image(path, channels=1).tolist() == [[[255, 0], [0, 255]]]
    assert read_header(path).grey


def test_sixteen_bit_grey_is_scaled_by_its_range(tmp_path: Path) -> None:
    values = np.array([[0, 128, 129, 257], [32767, 32896, 65406, 65535]], np.uint16)
    path = save(tmp_path, Image.fromarray(values))
    with Image.open(path) as image:
        assert image.mode.startswith("I")
    expected = np.rint(values / 257.0).astype(np.uint8)
    np.testing.assert_array_equal(read_image(path, channels=1), expected[None])
    np.testing.assert_array_equal(read_image(path, channels=3), np.stack([expected] * 3))
    assert read_header(path).grey


def test_a_level_of_sixteen_bits_that_stands_for_transparent(tmp_path: Path) -> None:
    values = np.array([[0, 1000, 1001, 999, 65535]], np.uint16)
    path = save(tmp_path, Image.fromarray(values), transparency=1000)
    for channels in (1, 3):
        assert read_image(path, channels=channels)[0].tolist() == [[0, 255, 4, 4, 255]]  # 1000 / 257 is 3.9
    with Image.open(path) as image:
        assert read_picture(image, channels=1)[0].tolist() == [[0, 255, 4, 4, 255]]
    path = save(tmp_path, Image.fromarray(values), transparency=0)
    assert read_image(path, channels=1)[0].tolist() == [[255, 4, 4, 4, 255]]


def test_pictures_of_floats_are_refused_as_arrays_are() -> None:
    floats = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    said = r"^images must be uint8 \(0 to 255\), not float32\.$"
    with pytest.raises(RequestError, match=said):
        read_picture(Image.fromarray(floats), channels=1)
    with pytest.raises(RequestError, match=said):
        read_array(floats, channels=1, size=(4, 4))


def through_a_pipe(pipe: Path, content: bytes) -> threading.Thread:
    """A named pipe, and a thread that puts the content into it once somebody reads."""
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(content), daemon=True)
    writer.start()
    return writer


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 200, 200), dtype=np.uint8)  # more than a pipe holds
    path = Path(save(tmp_path, Image.fromarray(noise.transpose(1, 2, 0))))
    writer = through_a_pipe(tmp_path / "pipe", path.read_bytes())
    np.testing.assert_array_equal(read_image(str(tmp_path / "pipe"), channels=3), noise)
    writer.join()


def test_what_a_pipe_holds_is_asked_for_once(tmp_path: Path) -> None:
    writer = through_a_pipe(tmp_path / "pipe", b"nothing")
    outcome = workers.decode_task(Task([0], [str(tmp_path / "pipe")], shape=(1, 4, 4)))  # twice would wait for ever
    assert outcome.refused == {
        0: f"{tmp_path / 'pipe'} is not a JPEG, PNG, WebP or BMP image, or its beginning is damaged."
    }
    writer.join()


def test_palettes(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *BLUE])
    image.putdata([0, 1])
    path = save(tmp_path, image)
    assert at_corners(read_image(path, channels=3))[:2] == [RED, BLUE]
    assert read_image(path, channels=1).tolist() == [[[LUMA[RED], LUMA[BLUE]]]]
    assert not read_header(path).grey
    image.putpalette([10, 10, 10, 200, 200, 200])
    path = save(tmp_path, image, "grey.png")
    assert read_header(path).grey
    assert read_image(path, channels=1).tolist() == [[[10, 200]]]


@pytest.mark.parametrize("transparency", [1, b"\xff\x00"], ids=["one colour", "an alpha for each"])
def test_transparent_palette_entries_lie_on_white(transparency: int | bytes, tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *BLUE])
    image.putdata([0, 1])
    path = save(tmp_path, image, transparency=transparency)
    assert at_corners(read_image(path, channels=3))[:2] == [RED, WHITE]


def test_alpha_lies_on_white(tmp_path: Path) -> None:
    pixels = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 51]]], np.uint8)
    path = save(tmp_path, Image.fromarray(pixels))
    found = read_image(path, channels=3)[:, 0].T
    assert found.tolist() == [[255, 0, 0], [255, 255, 255], [204, 204, 204]]  # 255 * (1 - 51 / 255) = 204
    path = save(tmp_path, Image.fromarray(np.array([[[9, 255], [9, 0]]], np.uint8), mode="LA"))
    assert read_image(path, channels=1).tolist() == [[[9, 255]]]
    assert read_header(path).grey


def test_a_colour_that_stands_for_transparent(tmp_path: Path) -> None:
    path = save(tmp_path, Image.fromarray(corners()), transparency=GREEN)
    assert at_corners(read_image(path, channels=3)) == [RED, WHITE, BLUE, WHITE]


def test_cmyk(tmp_path: Path) -> None:
    inks = np.array([[[0, 255, 255, 0], [0, 0, 0, 0], [0, 0, 0, 255]]], np.uint8).repeat(8, 0).repeat(8, 1)
    path = save(tmp_path, Image.fromarray(inks, mode="CMYK"), "a.jpg", quality=100, subsampling=0)
    found = read_image(path, channels=3)
    for column, wanted in ((4, RED), (12, WHITE), (20, (0, 0, 0))):
        np.testing.assert_allclose(found[:, 4, column], wanted, atol=3)
    assert abs(int(read_image(path, channels=1)[0, 4, 4]) - LUMA[RED]) <= 3


# Where EXIF's definition puts the quarters (R G / B W as stored) for each orientation.
TURNED = {
    1: (RED, GREEN, BLUE, WHITE),
    2: (GREEN, RED, WHITE, BLUE),
    3: (WHITE, BLUE, GREEN, RED),
    4: (BLUE, WHITE, RED, GREEN),
    5: (RED, BLUE, GREEN, WHITE),
    6: (BLUE, RED, WHITE, GREEN),
    7: (WHITE, GREEN, BLUE, RED),
    8: (GREEN, WHITE, RED, BLUE),
}


@pytest.mark.parametrize("orientation", [*TURNED, 0, 9])
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
def test_exif_rotation(orientation: int, name: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"lossless": True} if name == "a.webp" else {"quality": 100, "subsampling": 0} if name == "a.jpg" else {}
    path = save(tmp_path, Image.fromarray(corners(16, 24)), name, exif=exif, **lossless)
    pixels = read_image(path, channels=3)
    for found, wanted in zip(at_corners(pixels), TURNED.get(orientation, TURNED[1]), strict=True):
        np.testing.assert_allclose(found, wanted, atol=4)
    assert pixels.shape == ((3, 24, 16) if 5 <= orientation <= 8 else (3, 16, 24))
    assert read_header(path)[:2] == pixels.shape[1:]


def test_damaged_exif_does_not_spoil_the_picture(tmp_path: Path) -> None:
    path = save(tmp_path, Image.fromarray(corners()), exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01\x12")
    assert at_corners(read_image(path, channels=3)) == [RED, GREEN, BLUE, WHITE]


def test_the_centre_is_kept_and_the_proportions_too(tmp_path: Path) -> None:
    picture = np.zeros((40, 100, 3), np.uint8)
    picture[:, 30:70] = RED  # the middle square
    path = save(tmp_path, Image.fromarray(picture))
    pixels = read_image(path, channels=3, size=(40, 40))
    np.testing.assert_array_equal(pixels, np.broadcast_to(np.array(RED)[:, None, None], (3, 40, 40)))
    small = read_image(path, channels=3, size=(8, 20))  # the same proportions: nothing is cut off
    np.testing.assert_allclose(small[0, 4, [0, 1, 2, 3, 8, 9, 10, 11]], [0] * 4 + [255] * 4, atol=3)


def test_every_size_can_be_reached_from_every_other() -> None:
    """Rounding never puts the crop outside the picture, which Pillow would refuse."""
    for height, width in [(225, 300), (7, 9), (1, 1), (1, 1000), (333, 17)]:
        picture = Image.new("L", (width, height), 5)
        for side in range(1, 229, 3):
            for target in ((side, side), (side, 229 - side)):
                assert decode._fit(picture, *target).size == target[::-1]


def test_shrinking_is_antialiased(tmp_path: Path) -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    pixels = read_image(save(tmp_path, Image.fromarray(board)), channels=1, size=(8, 8))
    np.testing.assert_allclose(pixels, 127.5, atol=4)


def test_small_images_are_enlarged(tmp_path: Path) -> None:
    pixels = read_image(save(tmp_path, Image.fromarray(corners(4, 4))), channels=3, size=(16, 16))
    whole = Image.fromarray(corners(4, 4)).resize((16, 16), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(pixels, np.asarray(whole).transpose(2, 0, 1))


def test_a_large_jpeg_read_small_is_what_full_decoding_gives(tmp_path: Path) -> None:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    path = save(tmp_path, Image.fromarray(coarse).resize((768, 768), Image.Resampling.BICUBIC), "a.jpg", quality=95)
    with Image.open(path) as image:
        full = np.asarray(image.resize((24, 24), Image.Resampling.LANCZOS)).transpose(2, 0, 1)
    difference = read_image(path, channels=3, size=(24, 24)).astype(int) - full
    assert np.abs(difference).max() <= 6


def bomb(path: Path, width: int, height: int) -> str:
    """A PNG of a few bytes that claims to be so large."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x00\x00\x00\x00"
    pixels = zlib.compress(bytes(1000))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))
    return str(path)


@pytest.mark.parametrize("side", [8001, 9999, 60_000], ids=["ours", "Pillow's warning", "Pillow's error"])
def test_image_bombs(side: int, tmp_path: Path) -> None:
    path = bomb(tmp_path / "bomb.png", side, side)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for read in (read_header, lambda p: read_image(p, channels=3, size=(8, 8))):
            with pytest.raises(
                RequestError, match=r"^\S+bomb.png has more than 64 million pixels and is refused; .*\.$"
            ):
                read(path)
    assert not said


def test_files_beyond_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, Image.new("L", (2, 2)))
    monkeypatch.setattr(decode, "MAX_BYTES", 10)
    with pytest.raises(RequestError, match=r"a\.png takes more than 0 GB and is refused; make it smaller\.$"):
        read_image(path, channels=1)
    writer = through_a_pipe(tmp_path / "pipe", bytes(11))
    with pytest.raises(RequestError, match=r"pipe takes more than 0 GB and is refused; make it smaller\.$"):
        read_image(str(tmp_path / "pipe"), channels=1)
    writer.join()


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.bmp"])
def test_truncated_files(name: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = Path(save(tmp_path, Image.fromarray(noise), name))
    whole = path.read_bytes()
    for share in (0.0, 0.02, 0.5, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(RequestError, match=rf"^{re.escape(str(path))} .*\.$") as info:
            read_image(str(path), channels=3, size=(8, 8))
        assert "\n" not in str(info.value)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    text = tmp_path / "text.png"
    text.write_text("not an image")
    gif = save(tmp_path, Image.new("L", (2, 2)), "gif.png", format="GIF")
    empty = tmp_path / "empty.png"
    empty.touch()
    for path, words in (
        (str(text), "is not a JPEG, PNG, WebP or BMP image"),
        (gif, "is not a JPEG, PNG, WebP or BMP image"),
        (str(empty), "is an empty file"),
        (str(tmp_path / "none.png"), "there is no such file"),
        (str(tmp_path), "is a folder, not an image"),
    ):
        with pytest.raises(RequestError, match=words) as info:
            read_image(path, channels=3)
        assert path in str(info.value)
    with pytest.raises(RequestError, match=r"1 channel .* or 3 .*, not 4"):
        read_image(gif, channels=4)


def test_threads_leave_the_filters_of_warnings_as_they_were(tmp_path: Path) -> None:
    path = save(tmp_path, Image.fromarray(corners()))
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [read_image(path, channels=3) for _ in range(30)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def tasks(folder: Path, count: int, each: int) -> tuple[list[Task], np.ndarray]:
    """Tasks for `count` grey images of 4x4 with the value of their number, and the file they are to fill."""
    paths = [save(folder, Image.new("L", (4, 4), row), f"{row}.png") for row in range(count)]
    np.save(folder / "out.npy", np.zeros((count, 1, 4, 4), np.uint8))
    rows = [list(range(start, min(start + each, count))) for start in range(0, count, each)]
    return [
        Task(some, [paths[row] for row in some], str(folder / "out.npy"), count, (1, 4, 4)) for some in rows
    ], np.arange(count, dtype=np.uint8)


@pytest.mark.parametrize("workers", [0, 2])
def test_many_files_land_in_their_rows(workers: int, tmp_path: Path) -> None:
    todo, values = tasks(tmp_path, 50, 7)
    (tmp_path / "3.png").write_bytes(b"nothing")
    (tmp_path / "5.png").write_bytes((tmp_path / "5.png").read_bytes()[:-30])
    Image.new("RGB", (4, 4), (6, 6, 6)).save(tmp_path / "6.png")
    seen: set[int] = set()
    with Workers() as crew:
        outcomes = list(crew.run(todo, workers))
    for outcome in outcomes:
        seen |= set(outcome.rows)
        for row, facts, written in zip(outcome.rows, outcome.facts.tolist(), outcome.written, strict=True):
            kind = {3: UNREADABLE, 6: COLOUR}.get(row, GREY)
            assert facts == ([0, 0, UNREADABLE] if row == 3 else [4, 4, kind])
            assert written == (BAD if row in (3, 5) else WRITTEN)
            assert (row in outcome.refused) == (row in (3, 5))
    assert seen == set(range(50))
    values[[3, 5]] = 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy")[:, 0, 2, 2], values)


def test_workers_stop_when_nobody_listens_any_more(tmp_path: Path) -> None:
    todo, _ = tasks(tmp_path, 4, 1)
    before = threading.active_count()
    with Workers() as crew:
        for _ in range(2):  # and can be used again
            outcomes = crew.run(itertools.cycle(todo), 2)
            next(outcomes)
            outcomes.close()
            assert threading.active_count() == before
        assert sorted(outcome.rows[0] for outcome in crew.run(todo, 2)) == [0, 1, 2, 3]


def test_a_worker_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo, _ = tasks(tmp_path, 4, 2)
    monkeypatch.setattr(workers.sys, "executable", "/bin/false" if os.path.exists("/bin/false") else "false")
    died = r"a process that reads images died somewhere between .*\.png and .*\.png"
    with pytest.raises(RunError, match=died), Workers() as crew:
        list(crew.run(todo, 1))
