"""The cache of prepared images: what is planned, and that it is reused, renewed, continued and never torn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastswa.data import cache, decode, store, workers
from fastswa.data.cache import Prepared, load_files, plan, prepare
from fastswa.data.images import ImageFiles
from fastswa.data.plan import Options
from fastswa.data.sources.folder import list_folder
from fastswa.data.store import cache_folders
from fastswa.errors import RequestError, RunError


def make(root: Path, sizes: list[tuple[int, int]], mode: str = "L") -> Path:
    """A folder of images valued 10, 11, …; the first two labelled, the rest not. Sizes are (height, width)."""
    places = ["labeled/a", "labeled/b", *["unlabeled"] * (len(sizes) - 2)]
    for number, (place, (height, width)) in enumerate(zip(places, sizes, strict=True)):
        (root / place).mkdir(parents=True, exist_ok=True)
        value = 10 + number
        Image.new(mode, (width, height), value if mode == "L" else (value, 0, 0)).save(root / place / f"{number}.png")
    return root


def values(prepared: Prepared) -> list[int]:
    """The first channel at the centre of each image."""
    return prepared.pixels[:, 0, prepared.plan.height // 2, prepared.plan.width // 2].tolist()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths whose pixels were decoded in this process."""
    paths: list[str] = []
    real = decode.read_if_fitting

    def read(path: str, **options: Any) -> Any:
        paths.append(os.path.basename(path))
        return real(path, **options)

    monkeypatch.setattr(decode, "read_if_fitting", read)
    monkeypatch.setattr(workers, "read_if_fitting", read)
    return paths


def caches(root: Path) -> list[str]:
    return sorted(p.name.split("-", 2)[-1] for p in (root / ".fastswa-cache").glob("*[0-9].npy"))


@pytest.mark.parametrize(
    ("sizes", "mode", "shape"),
    [
        ([(12, 10)] * 3, "L", (1, 12, 10)),
        ([(12, 10)] * 3, "RGB", (3, 12, 10)),
        ([(8, 224)] * 3, "L", (1, 8, 224)),
        ([(225, 300)] * 3, "L", (1, 224, 224)),
        ([(4, 4)] * 3, "L", (1, 8, 8)),
        ([(20, 50), (33, 31), (70, 60)], "L", (1, 32, 32)),
        ([(500, 500), (400, 600), (9, 9)], "L", (1, 224, 224)),
        ([(5, 5), (6, 6), (7, 7)], "L", (1, 8, 8)),
    ],
)
def test_the_shape_follows_the_images(
    sizes: list[tuple[int, int]], mode: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    files = list_folder(make(tmp_path, sizes, mode))
    assert plan(files).shape == shape
    prepared = prepare(files)
    assert prepared.pixels.shape == (3, *shape)
    assert values(prepared) == [10, 11, 12]


def test_the_plan_counts(tmp_path: Path) -> None:
    files = list_folder(make(tmp_path, [(16, 16), (32, 32), (32, 32), (32, 80), (40, 32)]))
    found = plan(files)
    assert (found.smallest, found.median, found.largest) == ((16, 16), (32, 32), (32, 80))
    assert (found.sizes, found.grey, found.enlarged, found.cropped, found.images) == (4, 5, 1, 1, 5)
    assert found.notes == [
        "1 image is smaller than 32x32 and enlarged.",
        "1 image loses more than a third of the longer side to the crop to 32x32.",
    ]
    several = replace(found, enlarged=2, cropped=3, grey=1, channels=1)
    assert several.notes == [
        "2 images are smaller than 32x32 and enlarged.",
        "3 images lose more than a third of the longer side to the crop to 32x32.",
        "4 coloured images become grey.",
    ]


def test_size_and_channels_can_be_given(tmp_path: Path) -> None:
    make(tmp_path, [(16, 16), (8, 8), (16, 16)], "RGB")
    prepared = prepare(list_folder(tmp_path), Options(size=(10, 14), channels=1))
    assert prepared.pixels.shape == (3, 1, 10, 14)
    assert values(prepared) == [3, 3, 4]  # 0.299 of 10, 11, 12
    assert prepared.plan.notes[-1] == "3 coloured images become grey."


def test_one_coloured_image_makes_all_of_them_rgb(tmp_path: Path) -> None:
    make(tmp_path, [(8, 8)] * 40)
    Image.new("RGB", (8, 8), (77, 0, 0)).save(tmp_path / "unlabeled/30.png")
    prepared = prepare(list_folder(tmp_path))
    assert prepared.plan.shape == (3, 8, 8)
    row = [prepared.pixels[:, channel, 0, 0].tolist() for channel in range(3)]
    expected = [10 + int(Path(list_folder(tmp_path).paths[r]).stem) for r in range(40)]
    at = expected.index(40)
    assert row[1] == row[2] == [0 if place == at else value for place, value in enumerate(expected)]
    assert row[0][at] == 77
    assert caches(tmp_path) == ["3x8x8.npy"]
    assert not list((tmp_path / ".fastswa-cache").glob("*.part"))


def test_images_of_one_size_are_decoded_once_in_one_pass(tmp_path: Path, opened: list[str]) -> None:
    prepare(list_folder(make(tmp_path, [(8, 8)] * 5)))
    assert sorted(opened) == ["0.png", "1.png", "2.png", "3.png", "4.png"]


def test_an_odd_one_out_is_decoded_when_the_size_is_known(tmp_path: Path, opened: list[str]) -> None:
    files = list_folder(make(tmp_path, [(8, 8)] * 20 + [(9, 9)] + [(8, 8)] * 20))
    prepared = prepare(files)
    assert values(prepared) == [10 + int(Path(files.paths[row]).stem) for row in range(41)]
    assert prepared.plan.shape == (1, 8, 8)
    assert len(opened) <= 42 + 20  # none that was written is read again


def test_a_cache_is_reused(tmp_path: Path, opened: list[str]) -> None:
    make(tmp_path, [(8, 8), (9, 9), (10, 10)])
    first = prepare(list_folder(tmp_path))
    opened.clear()
    second = prepare(list_folder(tmp_path))
    assert opened == []
    np.testing.assert_array_equal(first.pixels, second.pixels)
    assert second.pixels.mode == "c"  # what is written to it never reaches the file
    assert second.plan == first.plan
    assert second.place == tmp_path / ".fastswa-cache"


@pytest.mark.parametrize("change", ["content", "time", "added", "removed", "renamed"])
def test_a_changed_folder_means_a_new_cache_and_the_old_one_goes(change: str, tmp_path: Path) -> None:
    make(tmp_path, [(8, 8)] * 4)
    prepare(list_folder(tmp_path))
    before = set(os.listdir(tmp_path / ".fastswa-cache"))
    last = tmp_path / "unlabeled" / "3.png"
    expected = [10, 11, 12, 13]
    if change == "content":
        status = last.stat()
        Image.new("L", (8, 8), 99).save(last)
        os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        expected[3] = 99
    elif change == "time":
        os.utime(last, (1, 1))
    elif change == "added":
        Image.new("L", (8, 8), 50).save(tmp_path / "unlabeled" / "x.png")
        expected.append(50)
    elif change == "removed":
        last.unlink()
        expected.pop()
    else:
        last.rename(last.with_name("0.png"))
        expected = [10, 11, 13, 12]
    assert values(prepare(list_folder(tmp_path))) == expected
    after = set(os.listdir(tmp_path / ".fastswa-cache"))
    assert before & after == {".gitignore", "CACHEDIR.TAG"}
    assert caches(tmp_path) == ["1x8x8.npy"]


def test_labels_and_settings(tmp_path: Path, opened: list[str]) -> None:
    make(tmp_path, [(8, 8)] * 3)
    for side in (8, 9, 10, 11, 8):
        assert prepare(list_folder(tmp_path), Options(size=(side, side))).plan.height == side
    # Of other shapes the two latest stay.
    assert caches(tmp_path) == ["1x10x10.npy", "1x11x11.npy", "1x8x8.npy"]


def test_two_manifests_of_one_folder_keep_their_own(tmp_path: Path) -> None:
    from fastswa.data.sources import load

    make(tmp_path, [(8, 8)] * 3)
    for name, rows in (("one", 2), ("two", 3)):
        listed = ["labeled/a/0.png,a", "labeled/b/1.png,b", "unlabeled/2.png,"][:rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["path,label", *listed]))
    for source, count in (("one.csv", 2), ("two.csv", 3), (".", 3)):
        assert len(load(str(tmp_path / source), tmp_path).train) == count
    assert caches(tmp_path) == ["1x8x8.npy"] * 3


class Stopped(Exception):
    pass


def stop_after(count: int) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, total: int) -> None:
        if done >= count:
            raise Stopped

    return progress


@pytest.mark.parametrize("sizes", [[(8, 8)] * 12, [(8 + k % 3, 8) for k in range(12)]], ids=["alike", "mixed"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_preparation_goes_on(
    sizes: list[tuple[int, int]], workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str]
) -> None:
    monkeypatch.setattr(cache, "_CHUNK_FILES", 1)
    files = list_folder(make(tmp_path, sizes))
    expected = [10 + int(Path(files.paths[row]).stem) for row in range(12)]
    for count in (4, 8):
        with pytest.raises(Stopped):
            prepare(files, Options(workers=workers, progress=stop_after(count)))
        assert caches(tmp_path) == []
    seen: list[tuple[str, int, int]] = []
    opened.clear()
    prepared = prepare(files, Options(workers=0, progress=lambda *news: seen.append(news)))
    assert values(prepared) == expected
    assert seen[-1] == ("preparing", 12, 12)
    if sizes[0] == sizes[2]:
        assert len(opened) <= 4
    assert not list((tmp_path / ".fastswa-cache").glob("*.part"))
    assert not list((tmp_path / ".fastswa-cache").glob("*.done"))


def test_a_killed_preparation_goes_on(tmp_path: Path) -> None:
    make(tmp_path, [(8, 8)] * 12)
    program = (
        "import os, sys; from fastswa.data import cache, plan, store\n"
        "from fastswa.data.sources.folder import list_folder\n"
        "cache._CHUNK_FILES, store.SYNC_SECONDS = 1, 0\n"
        "stop = lambda what, done, total: os._exit(9) if done == 7 else None\n"
        f"cache.prepare(list_folder({str(tmp_path)!r}), plan.Options(progress=stop))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert caches(tmp_path) == []
    done = next((tmp_path / ".fastswa-cache").glob("*.done")).read_bytes()
    assert done.count(1) == 7
    files = list_folder(tmp_path)
    assert values(prepare(files)) == [10 + int(Path(files.paths[row]).stem) for row in range(12)]


@pytest.mark.parametrize("ending", [".part", ".done"])
def test_a_cut_part_is_begun_anew(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_CHUNK_FILES", 1)
    files = list_folder(make(tmp_path, [(8, 8)] * 6))
    with pytest.raises(Stopped):
        prepare(files, Options(progress=stop_after(4)))
    part = next((tmp_path / ".fastswa-cache").glob(f"*x8{ending}"))
    part.write_bytes(part.read_bytes()[:-1])
    assert values(prepare(files)) == [10, 11, 12, 13, 14, 15]


def damage(root: Path) -> Path:
    """Six images, the third truncated and the fifth no image at all."""
    make(root, [(8, 8)] * 6)
    third = root / "unlabeled" / "2.png"
    third.write_bytes(third.read_bytes()[:50])
    (root / "unlabeled" / "4.png").write_bytes(b"nothing")
    return root


def test_unreadable_files_are_refused_or_skipped(tmp_path: Path, opened: list[str]) -> None:
    files = list_folder(damage(tmp_path))
    with pytest.raises(RequestError, match=r"^2 images cannot be used .*--data.skip_bad .*2.png .*truncated.*\.$"):
        prepare(files)
    assert caches(tmp_path) == []
    opened.clear()
    prepared = prepare(files, Options(skip_bad=True))
    assert sorted(opened) == ["2.png", "4.png"]  # what was done is kept
    assert values(prepared) == [10, 11, 13, 15]
    assert prepared.kept.tolist() == [0, 1, 3, 5]
    assert [Path(path).name for path in prepared.unreadable] == ["2.png", "4.png"]
    assert "is not a JPEG" in list(prepared.unreadable.values())[1]
    with pytest.raises(RequestError, match="2 images cannot be used"):
        prepare(files)
    dataset = load_files(files, Options(skip_bad=True))
    assert dataset.train.files is not None
    assert list(dataset.train.files)[2:] == ["unlabeled/3.png", "unlabeled/5.png"]
    assert dataset.train.labels.tolist() == [0, 1, -1, -1]


def test_a_file_that_can_be_read_again_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when permissions change: what the files are called, their sizes and their times stay."""
    files = list_folder(damage(tmp_path))
    content = store._content(files)[0]
    prepare(files, Options(skip_bad=True))
    monkeypatch.setattr(store, "_content", lambda files: (content, "", 0.0))
    Image.new("L", (8, 8), 99).save(tmp_path / "unlabeled" / "2.png")
    assert values(prepare(files, Options(skip_bad=True))) == [10, 11, 99, 13, 15]


def test_a_cut_cache_is_made_anew(tmp_path: Path) -> None:
    files = list_folder(make(tmp_path, [(8, 8)] * 4))
    prepare(files)
    whole = next((tmp_path / ".fastswa-cache").glob("*8.npy"))
    os.truncate(whole, whole.stat().st_size - 1)
    assert values(prepare(files)) == [10, 11, 12, 13]


def test_one_bad_file_is_named(tmp_path: Path) -> None:
    make(tmp_path, [(8, 8)] * 3)
    (tmp_path / "unlabeled" / "2.png").write_bytes(b"nothing")
    with pytest.raises(RequestError, match=r"2\.png is not a JPEG.* \(--data.skip_bad leaves it out\)\.$"):
        prepare(list_folder(tmp_path))


def test_a_class_without_readable_images(tmp_path: Path) -> None:
    make(tmp_path, [(8, 8)] * 3)
    (tmp_path / "labeled" / "b" / "1.png").write_bytes(b"nothing")
    with pytest.raises(RequestError, match="no labelled image of class 'b' can be read"):
        load_files(list_folder(tmp_path), Options(skip_bad=True))


def test_nothing_can_be_read(tmp_path: Path) -> None:
    make(tmp_path, [(8, 8)] * 3)
    for path in tmp_path.glob("*/**/*.png"):
        path.write_bytes(b"nothing")
    for _ in range(2):
        with pytest.raises(RequestError, match=r"no image can be read; the first: .*0.png is not a JPEG"):
            prepare(list_folder(tmp_path), Options(skip_bad=True))


def forbid(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Makes folders read-only, also for the super-user."""
    real = Path.mkdir

    def mkdir(self: Path, *args: Any, **options: Any) -> None:
        if any(self.is_relative_to(folder) for folder in folders):
            raise PermissionError(13, "Permission denied", str(self))
        real(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)


def test_a_read_only_folder_is_prepared_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    root = make(tmp_path / "images", [(8, 8)] * 3)
    forbid(monkeypatch, root)
    files = list_folder(root)
    prepared = prepare(files)
    assert prepared.place == cache_folders(files)[1]
    assert prepared.place.is_relative_to(tmp_path / "home" / "fastswa")
    assert values(prepared) == [10, 11, 12]
    assert not (root / ".fastswa-cache").exists()
    forbid(monkeypatch, tmp_path)
    with pytest.raises(RunError, match=r"neither to \S+/\.fastswa-cache nor to \S+; .* set XDG_CACHE_HOME\."):
        prepare(list_folder(make_more(root)))


def make_more(root: Path) -> Path:
    Image.new("L", (8, 8), 1).save(root / "unlabeled" / "more.png")
    return root


def test_a_cache_in_a_read_only_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    root = make(tmp_path / "images", [(8, 8)] * 3)
    prepare(list_folder(root))
    real = store._writable
    monkeypatch.setattr(store, "_writable", lambda folder: not folder.is_relative_to(root) and real(folder))
    files = list_folder(root)
    assert prepare(files).place == root / ".fastswa-cache"
    other = prepare(files, Options(size=(9, 9)))  # which is not there
    assert other.place == cache_folders(files)[1]
    assert values(other) == [10, 11, 12]


def test_pruning_spares_what_another_process_is_making(tmp_path: Path) -> None:
    files = list_folder(make(tmp_path, [(8, 8)] * 3))
    prepare(files)
    other = store.Store(tmp_path / ".fastswa-cache", "folder", "0" * 20, "", 0.0)
    with other.locked():
        other.part((1, 8, 8)).write_bytes(b"half")
        prepare(files, Options(size=(9, 9)))
        assert other.part((1, 8, 8)).exists()
    prepare(files, Options(size=(10, 10)))
    assert not other.part((1, 8, 8)).exists()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = list_folder(make(tmp_path, [(8, 8)] * 3))
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100})())
    with pytest.raises(RunError, match=r"the prepared images take 0\.2 KB, but \S+ has 0\.1 KB left; make room"):
        prepare(files)
    assert [store._size_text(size) for size in (999_900, 1_000_000, 2_340_000_000)] == ["999.9 KB", "1.0 MB", "2.3 GB"]
    monkeypatch.undo()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_head", full)
    with pytest.raises(RunError, match=r"the disk of \S+ is full; make room and run the command again to go on\."):
        prepare(files)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a file that is on a full disk")
@pytest.mark.parametrize("ending", [".part", ".npy.new"])
def test_a_disk_that_fills_up_on_the_way(ending: str, tmp_path: Path) -> None:
    """Room for what is mapped (.part) is taken before: a map of a file with holes would end the process by SIGBUS."""
    files = list_folder(make(tmp_path, [(8, 8), (9, 9), (10, 10)]))
    place = store.Store.of(files, Options()).facts.with_suffix(ending)
    place.symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"the disk of \S+ is full; make room and run the command again to go on\.$"):
        prepare(files)
    assert place.is_symlink() == (ending == ".part")  # what is half written is removed
    place.unlink(missing_ok=True)
    assert values(prepare(files)) == [10, 11, 12]


def test_two_at_once_wait_for_each_other(tmp_path: Path) -> None:
    make(tmp_path, [(8, 8)] * 60)
    program = (
        "import numpy as np; from fastswa.data import cache; from fastswa.data.sources.folder import list_folder\n"
        "cache._CHUNK_FILES = 1\n"
        f"print(int(np.sum(cache.prepare(list_folder({str(tmp_path)!r})).pixels[:, 0, 0, 0], dtype=int)))"
    )
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [int(process.communicate()[0]) for process in both] == [sum(range(10, 70))] * 2


def test_for_many_files_workers_start_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    real = workers.Workers.start

    def start(self: workers.Workers, count: int) -> None:
        started.append(count)
        real(self, count)

    monkeypatch.setattr(workers.Workers, "start", start)
    monkeypatch.setattr(cache, "_MANY_FILES", 2)
    files = list_folder(make(tmp_path, [(8, 8), (9, 9), (10, 10), (10, 12)]))
    for _ in range(2):  # the second time nothing is to be done, and nothing is started
        assert values(prepare(files, Options(workers=1))) == [10, 11, 12, 13]
    assert set(started) == {1}
    assert len(started) == 3  # at once, to look at the sizes, to decode


def test_workers_are_started_for_long_work_only() -> None:
    assert cache._workers(Options(), 0.5) == 0
    assert cache._workers(Options(workers=3), 0.5) == 3
    cores = len(os.sched_getaffinity(0))
    assert cache._workers(Options(), 60.0) == (min(cores, 16) if cores > 1 else 0)


def test_listing_holds_no_objects_per_file(tmp_path: Path) -> None:
    files: ImageFiles = list_folder(make(tmp_path, [(8, 8)] * 3))
    assert files.labels.nbytes == 3 * 8
    assert type(files.paths._letters) is bytearray
