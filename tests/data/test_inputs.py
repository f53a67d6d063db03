"""What predictions are made for: every kind of target, some images at a time, in order."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastswa.data import inputs
from fastswa.data.decode import read_array, read_image, read_picture
from fastswa.data.images import ImageSet
from fastswa.data.inputs import Chunk, Inputs, SetInputs, find_inputs, part_named
from fastswa.data.workers import Task, Workers
from fastswa.errors import RequestError, RunError

SHAPE = (1, 4, 4)


def put(path: Path, value: int, side: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (side, side), value).save(path)
    return path


def read(some: list[Inputs], workers: int | None = 0) -> list[tuple[str, int | str]]:
    """Each name with its pixels' value, or why there is none."""
    rows: list[tuple[str, int | str]] = []
    for chunk in (chunk for part in some for chunk in part.chunks(SHAPE, workers)):
        good = iter(chunk.pixels)
        for place, name in enumerate(chunk.names):
            rows.append((name, chunk.errors[place] if place in chunk.errors else int(next(good)[0, 0, 0])))
        assert next(good, None) is None
    assert len(rows) == sum(map(len, some))
    return rows


def refused(*targets: object, part: str | None = None) -> str:
    with pytest.raises(RequestError) as caught:
        read(find_inputs([str(target) for target in targets], part)[0])
    return str(caught.value)


def test_folders_and_files_in_the_order_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("b/2.png", "b/deep/er/1.bmp", "a.png", "b/.hidden.png")):
        put(Path(name), 10 * number, side=4 + number)
    Path("b/notes.txt").write_text("text")
    Path("b/scan.tiff").write_text("scan")
    found, notes = find_inputs(["a.png", "b/", "a.png"])
    assert len(found) == 1
    assert read(found) == [("a.png", 20), ("b/2.png", 0), ("b/deep/er/1.bmp", 10), ("a.png", 20)]
    assert notes == ["1 .tiff files are left out; save them as JPEG, PNG, WebP or BMP."]
    assert read(find_inputs([str(tmp_path / "b")])[0])[0] == (str(tmp_path / "b/2.png"), 0)


def test_a_pipe_among_files_is_read_by_this_process(tmp_path: Path) -> None:
    names = [str(put(tmp_path / f"{number:02}.png", number)) for number in range(40)]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = put(tmp_path / "more.png", 99).read_bytes()
    writer = threading.Thread(target=lambda: pipe.write_bytes(content), daemon=True)
    writer.start()
    rows = read(find_inputs([*names, str(pipe), names[0]])[0], 2)
    assert rows == [*zip(names, range(40), strict=True), (str(pipe), 99), (names[0], 0)]
    writer.join()


def test_no_image_swallows_what_readers_are_told(tmp_path: Path) -> None:
    name = str(put(tmp_path / "a.png", 1))
    with Workers() as crew:
        outcomes = list(crew.in_order([Task([0], ["/dev/stdin"], shape=SHAPE), Task([1], [name], shape=SHAPE)], 1))
    assert list(outcomes[0].refused) == [0]
    assert outcomes[1].refused == {}


def test_a_bad_file_is_an_error_among_good_ones(tmp_path: Path) -> None:
    names = [put(tmp_path / f"{number:02}.png", number) for number in range(40)]
    names[3].write_bytes(b"nothing")
    names[25].write_bytes(names[25].read_bytes()[:45])
    for workers in (0, 2):
        rows = read(find_inputs([str(tmp_path)])[0], workers)
        assert [name for name, _ in rows] == [str(name) for name in names]
        assert [value for _, value in rows if isinstance(value, int)] == [n for n in range(40) if n not in (3, 25)]
        assert rows[3][1] == f"{names[3]} is not a JPEG, PNG, WebP or BMP image, or its beginning is damaged."
        assert str(rows[25][1]).startswith(f"{names[25]} cannot be read: the image is truncated")


def test_a_manifest_needs_paths_only(tmp_path: Path) -> None:
    put(tmp_path / "sub/a.png", 1)
    put(tmp_path / "b.png", 2)
    put(tmp_path / "c.png", 3)
    manifest = tmp_path / "list.csv"
    manifest.write_text(f"\ufeffPath;Note\nsub\\a.png;x\n{tmp_path / 'b.png'};\ngone.png;\n", "utf-8")
    found, _ = find_inputs([str(tmp_path / "c.png"), str(manifest)])
    assert read(found) == [
        (str(tmp_path / "c.png"), 3),
        ("sub\\a.png", 1),
        (str(tmp_path / "b.png"), 2),
        ("gone.png", f"{tmp_path / 'gone.png'}: there is no such file."),
    ]
    manifest.write_text("file\na.png\n")
    assert refused(manifest) == f"{manifest} has no column 'path' in its first line (which holds: file)."
    manifest.write_text("path\n")
    assert refused(manifest) == f"{manifest} lists no image."
    manifest.write_text("path,note\na.png,\n,x\n")
    assert refused(manifest) == f"{manifest}, line 3: the path is empty."


def test_parts_of_a_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "list.csv"
    manifest.write_text("path,label,split\na.png,cat,\nb.png,,\nc.png,cat,Test\nd.png,,train\n")
    for part, wanted in {"labelled": ["a.png"], "unlabelled": ["b.png", "d.png"], "test": ["c.png"]}.items():
        assert [name for name, _ in read(find_inputs([str(manifest)], part)[0])] == wanted
    manifest.write_text("path,label\na.png,cat\n")
    assert refused(manifest, part="unlabelled") == f"{manifest} lists no unlabelled image."
    assert refused(manifest, part="test").startswith(f"{manifest} has no column 'split'")


@pytest.mark.parametrize("spelling", ["unlabeled", "unlabelled", "Unlabeled"])
def test_parts_of_a_folder(spelling: str, tmp_path: Path) -> None:
    put(tmp_path / "labeled/cat/1.png", 1)
    put(tmp_path / spelling / "deep/2.png", 2)
    assert read(find_inputs([str(tmp_path)], "labelled")[0]) == [(str(tmp_path / "labeled/cat/1.png"), 1)]
    assert read(find_inputs([str(tmp_path)], "unlabelled")[0]) == [(str(tmp_path / spelling / "deep/2.png"), 2)]
    assert refused(tmp_path, part="test") == f"--part: {tmp_path} has no folder 'test'."
    file = tmp_path / "labeled/cat/1.png"
    assert refused(file, part="test").startswith(f"--part: {file} is a single file")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "gone") == f"{tmp_path / 'gone'}: there is no such file or folder."
    assert refused(tmp_path) == f"{tmp_path} holds no image (JPEG, PNG, WebP or BMP)."
    assert part_named("unlabeled") == "unlabelled"
    with pytest.raises(RequestError, match=r"^--part: 'tests' is not labelled, unlabelled, test\.$"):
        part_named("tests")


def test_arrays_in_any_layout_and_compression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_CHUNK_FILES", 3)
    values = np.arange(7, dtype=np.uint8)
    rows = np.broadcast_to(values[:, None, None], (7, 4, 4))
    forms = {
        "x": rows,
        "x_grey": rows[:, None],
        "x_last": rows[..., None],
        "x_rgb": np.repeat(rows[..., None], 3, axis=-1),
        "x_large": np.repeat(np.repeat(rows, 2, axis=1), 3, axis=2),
        "x_columns": np.asfortranarray(rows),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", other=np.zeros(3), **forms)
        found, _ = find_inputs([str(tmp_path / "a.npz")])
        wanted = [(f"{tmp_path / 'a.npz'}:{key}:{number}", number) for key in forms for number in range(7)]
        assert read(found) == wanted


def test_parts_of_an_npz_file(tmp_path: Path) -> None:
    def images(*values: int) -> np.ndarray:
        return np.broadcast_to(np.array(values, np.uint8)[:, None, None], (len(values), 4, 4))

    file = tmp_path / "a.npz"
    labels = np.array([0, -1, 1, -1])
    np.savez(file, x_train=images(1, 2, 3, 4), y_train=labels, x_unlabelled=images(5, 6), x_test=images(7))
    wanted = {"labelled": [("x_train", 0), ("x_train", 2)], "test": [("x_test", 0)]}
    wanted["unlabelled"] = [("x_train", 1), ("x_train", 3), ("x_unlabelled", 0), ("x_unlabelled", 1)]
    for part, names in wanted.items():
        assert [n for n, _ in read(find_inputs([str(file)], part)[0])] == [f"{file}:{k}:{row}" for k, row in names]
    assert [v for _, v in read(find_inputs([str(file)], "unlabelled")[0])] == [2, 4, 5, 6]
    np.savez(file, x_train=images(1, 2))
    assert refused(file, part="test") == f"{file} holds no test images (it holds x_train)."
    assert refused(file, part="labelled").startswith(f"--part: {file} lacks y_train")


def test_arrays_that_are_no_images_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, x=np.zeros((2, 4, 4)))
    assert refused(file).startswith(f"{file}: x is float64 of shape (2, 4, 4); images are uint8")
    np.savez(file, x=np.array([{"a": 1}], dtype=object))
    assert refused(file).startswith(f"{file}: x is object of shape (1,); images are uint8")
    np.savez(file, images=np.zeros((2, 4, 4), np.uint8))
    assert refused(file) == f"{file} holds no array x or x_… (it holds images)."
    file.write_bytes(b"PK nothing")
    assert refused(file) == f"{file} is not an .npz file of plain arrays or is damaged; write it again."
    np.savez(file, x=np.random.default_rng(0).integers(0, 256, (50, 40, 40), np.uint8))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert refused(file) == f"{file}: the array x is damaged; write the file again."


def test_images_of_a_set_keep_their_names() -> None:
    pixels = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, *SHAPE), np.uint8)
    images = ImageSet(pixels, np.zeros(5, np.int64), ("a", "b"))
    assert read([SetInputs(images, np.array([3, 1]), "digits:train")]) == [("digits:train:3", 3), ("digits:train:1", 1)]
    with pytest.raises(RequestError, match=r"are \(1, 4, 4\) now, and were \(3, 4, 4\)"):
        next(SetInputs(images, np.array([3]), "digits:train").chunks((3, 4, 4), 0))


def test_many_files_go_to_processes_and_come_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = Workers.in_order
    monkeypatch.setattr(inputs, "_CHUNK_FILES", 7)
    monkeypatch.setattr(Workers, "in_order", lambda self, tasks, n: asked.append(n) or real(self, tasks, n))
    monkeypatch.setattr(inputs, "cores", lambda: 2)
    names = [str(put(tmp_path / f"{number:03}.png", number)) for number in range(100)]
    wanted = list(zip(names, range(100), strict=True))
    assert read(find_inputs(names)[0], None) == wanted
    monkeypatch.setattr(inputs, "_LONG_SECONDS", 0.0)
    assert read(find_inputs(names)[0], None) == wanted
    assert asked == [0, 2]


def test_readers_stay_a_few_tasks_ahead(tmp_path: Path) -> None:
    name = str(put(tmp_path / "a.png", 1))
    taken: list[int] = []

    def tasks() -> object:
        for number in range(50):
            taken.append(number)
            yield Task([number], [name], shape=SHAPE)

    with Workers() as crew:
        outcomes = crew.in_order(tasks(), 2)  # type: ignore[arg-type]
        for number in range(20):
            outcome = next(outcomes)
            assert outcome.rows == [number]
            assert outcome.pixels is not None
            assert outcome.pixels.shape == (1, *SHAPE)
            assert len(taken) <= number + 1 + 2 * 2
        outcomes.close()
    assert len(taken) < 30


def test_a_reader_that_dies_ends_it_with_a_sentence(tmp_path: Path) -> None:
    names = [str(put(tmp_path / f"{number:03}.png", number)) for number in range(100)]
    with Workers() as crew:
        outcomes = crew.in_order((Task([n], [name], shape=SHAPE) for n, name in enumerate(names)), 2)
        next(outcomes)
        for process in crew._processes:
            process.kill()
        with pytest.raises(RunError, match="a process that reads images died"):
            list(outcomes)


def test_pictures_and_arrays_become_what_their_files_do(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (9, 6, 3), dtype=np.uint8)
    path = tmp_path / "a.png"
    rotated = Image.Exif()
    rotated[0x0112] = 6
    Image.fromarray(picture).save(path, exif=rotated)
    for channels in (1, 3):
        wanted = read_image(str(path), channels=channels, size=(4, 4))
        with Image.open(path) as opened:
            np.testing.assert_array_equal(read_picture(opened, channels=channels, size=(4, 4)), wanted)
            assert (opened.size, opened.mode) == ((6, 9), "RGB")
        Image.fromarray(picture).save(tmp_path / "plain.png")
        wanted = read_image(str(tmp_path / "plain.png"), channels=channels, size=(4, 4))
        for array in (picture, picture.transpose(2, 0, 1), np.dstack([picture, np.full((9, 6), 255, np.uint8)])):
            np.testing.assert_array_equal(read_array(array, channels=channels, size=(4, 4)), wanted)
    grey = picture[:, :, 0]
    Image.fromarray(grey).save(path)
    wanted = read_image(str(path), channels=3, size=(4, 4))
    np.testing.assert_array_equal(read_array(grey, channels=3, size=(4, 4)), wanted)
    np.testing.assert_array_equal(read_array(grey[..., None], channels=3, size=(4, 4)), wanted)
    with pytest.raises(RequestError, match="1 channel"):
        read_array(grey, channels=2, size=(4, 4))


def test_names_that_are_no_utf8_are_read(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    try:
        put(tmp_path / "a.png", 5).rename(name)
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    assert read(find_inputs([str(tmp_path)])[0]) == [(name, 5)]


def test_a_chunk_is_small(tmp_path: Path) -> None:
    """At any size of image a few megabytes are read at a time."""
    put(tmp_path / "a.png", 1)
    (found,) = find_inputs([str(tmp_path / "a.png")] * 300)[0]
    chunks: list[Chunk] = list(found.chunks((3, 224, 224), 0))
    assert [len(chunk.names) for chunk in chunks] == [16, *[55] * 5, 9]
    assert max(chunk.pixels.nbytes for chunk in chunks) <= 8 << 20
