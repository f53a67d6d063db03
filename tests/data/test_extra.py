"""Extra unlabelled images: every kind of source, sizes and colours brought to the main one's, nothing read in vain."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastswa.data.extra import ExtraImages, load_extra
from fastswa.data.images import ImageSet
from fastswa.data.plan import Options
from fastswa.data.sources.tiny_images import map_tiny_images
from fastswa.errors import RequestError

RECORD = 3072


def train_set(channels: int = 3, size: int = 32) -> ImageSet:
    return ImageSet(np.zeros((4, channels, size, size), np.uint8), np.array([0, 1, 0, 1]), ("a", "b"))


def images(count: int, channels: int = 3, size: int = 32) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, channels, size, size), dtype=np.uint8)


def read(extra: ExtraImages, numbers: list[int] | None = None) -> np.ndarray:
    """Some or all of the images, (n, C, H, W)."""
    chosen = np.arange(len(extra)) if numbers is None else np.array(numbers)
    channels, height, width = extra.shape
    out = np.empty((len(chosen), height, width, channels), np.uint8)
    extra.read(chosen, out)
    return out.transpose(0, 3, 1, 2)


def refusal(source: object, **options: object) -> str:
    with pytest.raises(RequestError) as caught:
        load_extra(str(source), Path("data"), train_set(), **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_tiny_images_are_planes_column_by_column(tmp_path: Path) -> None:
    """Byte c * 1024 + x * 32 + y of a record is the pixel in channel c, row y, column x."""
    file = tmp_path / "tiny_images.bin"
    pixels = images(3)
    records = np.empty((3, RECORD), np.uint8)
    for c in range(3):
        for y in range(32):
            for x in range(32):
                records[:, c * 1024 + x * 32 + y] = pixels[:, c, y, x]
    records.tofile(file)
    assert np.array_equal(map_tiny_images(file), pixels)
    assert np.array_equal(read(load_extra(str(file), tmp_path, train_set()), [2, 0, 0]), pixels[[2, 0, 0]])


def test_of_a_file_of_many_gigabytes_only_the_images_asked_for_are_read(tmp_path: Path) -> None:
    """Three million records, 8.6 GiB of holes but for three of them; 20,000 drawn ones are read."""
    file, count = tmp_path / "tiny_images.bin", 3_000_000
    marked = {5: 1, 1_234_567: 2, count - 1: 3}
    with file.open("wb") as stream:
        for number, value in marked.items():
            stream.seek(number * RECORD)
            stream.write(bytes([value]) * RECORD)
    assert file.stat().st_size == count * RECORD
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = load_extra(str(file), tmp_path, train_set())
    assert len(whole) == count
    assert read(whole, list(marked))[:, 0, 0, 0].tolist() == [1, 2, 3]
    drawn = load_extra(str(file), tmp_path, train_set(), images=20_000, seed=1)
    assert len(drawn) == 20_000
    read(drawn)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 500 * 1024  # kilobytes: far below the file


def test_a_part_of_the_binary_will_do_but_a_torn_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tiny_images.bin"
    file.write_bytes(b"\0" * (2 * RECORD + 5))
    assert "is not the Tiny Images binary or is truncated: 6,149 bytes" in refusal(file)
    file.write_bytes(b"")
    assert "0 bytes are not a whole number" in refusal(file)


def test_it_is_found_under_the_root_and_its_absence_names_a_way_out(tmp_path: Path) -> None:
    images(2).tofile(tmp_path / "tiny_images.bin")
    assert len(load_extra("tiny_images.bin", tmp_path, train_set())) == 2
    assert "Tiny Images was withdrawn" in refusal("tiny_images.bin")
    assert refusal("none.npz") == "data.extra: there is no none.npz, neither here nor under data."


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_an_npy_file_is_mapped_in_either_layout(tmp_path: Path, layout: str) -> None:
    pixels = images(10)
    np.save(tmp_path / "more.npy", pixels if layout == "NCHW" else pixels.transpose(0, 2, 3, 1))
    extra = load_extra(str(tmp_path / "more.npy"), tmp_path, train_set())
    assert isinstance(extra.pixels, np.memmap)
    assert np.array_equal(read(extra), pixels)


def test_an_npz_file_needs_no_labels(tmp_path: Path) -> None:
    pixels = images(10).transpose(0, 2, 3, 1)
    np.savez(tmp_path / "one.npz", x_unlabelled=pixels)
    np.savez(tmp_path / "two.npz", x_train=pixels[:4], y_train=np.array([7, 7, -9, 1000]), x_unlabelled=pixels[4:])
    for name in ("one.npz", "two.npz"):
        extra = load_extra(str(tmp_path / name), tmp_path, train_set())
        assert np.array_equal(read(extra), pixels.transpose(0, 3, 1, 2))


def test_a_built_in_source_gives_its_training_images_grey_made_rgb_and_enlarged() -> None:
    extra = load_extra("digits", Path("data"), train_set(3, 16))
    assert len(extra) == 1297  # of 1,797: the 500 test images stay out
    first = read(extra, [0])
    assert first.shape == (1, 3, 16, 16)
    assert np.array_equal(first[:, 0], first[:, 1])
    assert np.array_equal(first[:, 0], first[:, 2])


def test_rgb_becomes_grey_by_luma(tmp_path: Path) -> None:
    pixels = np.empty((2, 3, 8, 8), np.uint8)
    pixels[0] = np.array([255, 0, 0])[:, None, None]
    pixels[1] = np.array([0, 255, 0])[:, None, None]
    np.save(tmp_path / "more.npy", pixels)
    grey = read(load_extra(str(tmp_path / "more.npy"), tmp_path, train_set(1, 8)))
    assert grey.shape == (2, 1, 8, 8)
    assert [int(image.max()) for image in grey] == [76, 150]  # ITU-R 601: 0.299 and 0.587 of 255


def test_larger_arrays_are_fitted_as_image_files_are(tmp_path: Path) -> None:
    pixels = images(3, 3, 48)
    np.save(tmp_path / "more.npy", pixels)
    for number, image in enumerate(pixels):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / f"{number}.png")
    from_files = load_extra(str(tmp_path), tmp_path, train_set(), options=Options(workers=0))
    assert np.array_equal(read(load_extra(str(tmp_path / "more.npy"), tmp_path, train_set())), read(from_files))


def save(path: Path, shade: int, size: tuple[int, int] = (32, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, shade).save(path)


def shades(extra: ExtraImages) -> list[int]:
    return sorted(int(image.mean()) for image in read(extra))


def test_a_folder_of_images_in_any_depth(tmp_path: Path) -> None:
    save(tmp_path / "more" / "a.png", 10)
    save(tmp_path / "more" / "deep" / "er" / "b.png", 20, (64, 40))
    (tmp_path / "more" / "notes.txt").touch()
    assert shades(load_extra("more", tmp_path, train_set())) == [10, 20]


def test_test_images_of_a_data_folder_are_left_out(tmp_path: Path) -> None:
    for place, shade in (("labeled/a", 10), ("labeled/b", 20), ("unlabeled", 30), ("test/a", 40)):
        save(tmp_path / "mine" / place / "x.png", shade)
    assert shades(load_extra("mine", tmp_path, train_set())) == [10, 20, 30]
    for place, shade in (("unlabeled", 30), ("test/a", 40)):
        save(tmp_path / "half" / place / "x.png", shade)
    assert shades(load_extra("half", tmp_path, train_set())) == [30]


def test_a_manifest_needs_only_paths(tmp_path: Path) -> None:
    for shade in (10, 20, 30):
        save(tmp_path / f"{shade}.png", shade)
    (tmp_path / "a.csv").write_text("path\n10.png\n20.png\n")
    (tmp_path / "b.csv").write_text("path,label,split\n10.png,cat,train\n30.png,cat,test\n20.png,,\n")
    for name in ("a.csv", "b.csv"):
        assert shades(load_extra(name, tmp_path, train_set())) == [10, 20]
    (tmp_path / "c.csv").write_text("path\nabsent.png\n10.png\n")
    assert "c.csv, line 2: there is no file absent.png" in refusal(tmp_path / "c.csv")
    assert shades(load_extra("c.csv", tmp_path, train_set(), options=Options(skip_bad=True))) == [10]


def test_a_file_lists_numbers_and_ranges(tmp_path: Path) -> None:
    pixels = images(20)
    np.save(tmp_path / "more.npy", pixels)
    listed = tmp_path / "chosen.txt"
    listed.write_text("17\n3-5\n0\n")
    extra = load_extra("more.npy", tmp_path, train_set(), file=listed)
    assert np.array_equal(read(extra), pixels[[0, 3, 4, 5, 17]])
    few = load_extra("more.npy", tmp_path, train_set(), file=listed, images=2)
    assert len(few) == 2
    assert few.chosen is not None
    assert set(few.chosen) < {0, 3, 4, 5, 17}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("20", "lists image 20, but those of more.npy are numbered 0 to 19."),
        ("3 3", "lists an image twice."),
        ("1-4 4-5", "lists an image twice."),
        ("one", "must hold one number or FIRST-LAST a line"),
        ("1-2-3", "must hold one number or FIRST-LAST a line"),
        ("-3", "must hold one number or FIRST-LAST a line"),
        ("9-5", "lists 9-5, whose first number is above its last."),
        ("0-3 9-5", "lists 9-5, whose first number is above its last."),
        ("", "lists no image."),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    np.save(tmp_path / "more.npy", images(20))
    (tmp_path / "chosen.txt").write_text(text)
    with pytest.raises(RequestError, match=f"data.extra_file: .*{sentence}"):
        load_extra("more.npy", tmp_path, train_set(), file=tmp_path / "chosen.txt")


def test_a_draw_depends_on_its_seed_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "more.npy", images(50))
    chosen = [load_extra("more.npy", tmp_path, train_set(), images=10, seed=seed).chosen for seed in (1, 1, 2)]
    assert all(one is not None and len(np.unique(one)) == 10 for one in chosen)
    assert np.array_equal(chosen[0], chosen[1])  # type: ignore[arg-type]
    assert not np.array_equal(chosen[0], chosen[2])  # type: ignore[arg-type]
    assert len(load_extra("more.npy", tmp_path, train_set(), images=60)) == 50  # at most


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "float.npy", images(2).astype(np.float32))
    assert "float.npy is float32; convert the images to uint8" in refusal(tmp_path / "float.npy")
    np.save(tmp_path / "flat.npy", np.zeros((5, 7), np.uint8))
    assert "flat.npy has shape (5, 7)" in refusal(tmp_path / "flat.npy")
    np.save(tmp_path / "none.npy", images(1)[:0])
    assert "none.npy holds no images" in refusal(tmp_path / "none.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    assert "objects.npy cannot be read as an .npy file" in refusal(tmp_path / "objects.npy")
    (tmp_path / "junk.npy").write_text("junk")
    assert refusal(tmp_path / "junk.npy").endswith("cannot be read as an .npy file (it is no array of numbers).")
    np.savez(tmp_path / "other.npz", pictures=images(2))
    assert "other.npz holds neither x_unlabelled nor x_train" in refusal(tmp_path / "other.npz")
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04torn")
    assert "torn.npz is damaged or cannot be read" in refusal(tmp_path / "torn.npz")
    (tmp_path / "empty").mkdir()
    assert "empty holds no image (JPEG, PNG, WebP or BMP)" in refusal(tmp_path / "empty")
    (tmp_path / "words.txt").touch()
    assert "is none of digits, cifar10, cifar100, stl10, mnist, usps, usps-margin, a folder" in refusal(
        tmp_path / "words.txt"
    )
