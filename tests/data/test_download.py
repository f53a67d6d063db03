"""Downloads from a local server: resumed, checked, unpacked safely, with one sentence for each failure."""

from __future__ import annotations

import errno
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fastswa.data import download as module
from fastswa.data.download import ARCHIVES, Archive, Progress, download
from fastswa.errors import RequestError, RunError

FOLDER = "cifar-10-batches-bin"
FILES = {
    f"data_batch_{k}.bin": np.random.default_rng(k).integers(0, 256, 30_730, dtype=np.uint8).tobytes()
    for k in range(1, 4)
}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def archive(*extra: tarfile.TarInfo, files: dict[str, bytes] = FILES) -> bytes:
    """A .tar.gz of `files` in their folder, and of empty members as given."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in extra:
            tar.addfile(member)
    return stream.getvalue()


class Server(ThreadingHTTPServer):
    """Serves `content` at any path; can ignore ranges, send a wrong one, fail, or break off."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.ranges = True
        self.shift = 0
        self.status = 200
        self.break_after: int | None = None
        self.requests: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append(asked)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        content, start = self.server.content, 0
        if asked and self.server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + self.server.shift
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.server.break_after is None else body[: self.server.break_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    content = archive()
    publish(monkeypatch, content)
    monkeypatch.setenv("no_proxy", "*")
    with Server(content) as subject:
        thread = threading.Thread(target=subject.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield subject
        subject.shutdown()
        thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Makes `content` the archive that `cifar10` expects."""
    entry = Archive("cifar-10-binary.tar.gz", md5(content), FOLDER, {name: md5(data) for name, data in FILES.items()})
    monkeypatch.setitem(ARCHIVES, "cifar10", entry)


def quiet(done: int, total: int | None) -> None:
    pass


def fetch(server: Server, root: Path, progress: Progress = quiet) -> module.Download:
    return download("cifar10", root, progress, server.url)


def assert_whole(root: Path) -> None:
    assert {path.name: path.read_bytes() for path in (root / FOLDER).iterdir()} == FILES
    assert [path.name for path in root.iterdir()] == [FOLDER], "neither the archive nor a scratch folder is left"


def part(root: Path) -> Path:
    return root / "cifar-10-binary.tar.gz.part"


def test_published_addresses_and_sums() -> None:
    assert module.BASE_URL == "https://www.cs.toronto.edu/~kriz/"
    assert (ARCHIVES["cifar10"].file, len(ARCHIVES["cifar10"].files)) == ("cifar-10-binary.tar.gz", 6)
    assert (ARCHIVES["cifar100"].file, len(ARCHIVES["cifar100"].files)) == ("cifar-100-binary.tar.gz", 2)


def test_a_download_arrives_whole_and_is_counted(server: Server, tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    result = fetch(server, tmp_path / "new" / "root", lambda done, total: calls.append((done, total)))
    assert_whole(tmp_path / "new" / "root")
    assert result.fetched
    assert result.folder == tmp_path / "new" / "root" / FOLDER
    assert result.message == f"cifar10 is in {result.folder}."
    assert calls[0] == (0, len(server.content))
    assert calls[-1] == (len(server.content), len(server.content))


def test_a_bar_is_drawn_on_stderr_by_default(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download("cifar10", tmp_path, base_url=server.url)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "cifar-10-binary.tar.gz" in captured.err


def test_a_whole_copy_is_kept(server: Server, tmp_path: Path) -> None:
    fetch(server, tmp_path)
    result = fetch(server, tmp_path)
    assert not result.fetched
    assert "already in" in result.message
    assert len(server.requests) == 1


def test_a_damaged_copy_is_mended_and_what_else_is_there_stays(server: Server, tmp_path: Path) -> None:
    fetch(server, tmp_path)
    (tmp_path / FOLDER / "data_batch_2.bin").write_bytes(b"cut short")
    (tmp_path / FOLDER / "notes.txt").write_text("mine")
    assert fetch(server, tmp_path).fetched
    assert (tmp_path / FOLDER / "notes.txt").read_text() == "mine"
    (tmp_path / FOLDER / "notes.txt").unlink()
    assert_whole(tmp_path)


def test_a_subset_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "SUBSET").touch()
    with pytest.raises(RequestError, match="is marked as a SUBSET; give another folder with --root"):
        fetch(server, tmp_path)
    assert server.requests == []


def test_a_broken_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.break_after = 40_000
    with pytest.raises(RunError, match=f"broke after 40,000 of {len(server.content):,} bytes; run the command again"):
        fetch(server, tmp_path)
    assert part(tmp_path).read_bytes() == server.content[:40_000]
    server.break_after = None
    calls: list[tuple[int, int | None]] = []
    fetch(server, tmp_path, lambda done, total: calls.append((done, total)))
    assert server.requests == [None, "bytes=40000-"]
    assert calls[0] == (40_000, len(server.content))
    assert_whole(tmp_path)


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    part(tmp_path).write_bytes(b"x" * 1000)
    server.ranges = False
    fetch(server, tmp_path)
    assert server.requests == ["bytes=1000-"]
    assert_whole(tmp_path)


def test_a_server_that_sends_another_range_is_refused(server: Server, tmp_path: Path) -> None:
    part(tmp_path).write_bytes(server.content[:1000])
    server.shift = 5
    with pytest.raises(RunError, match="the server sent another range"):
        fetch(server, tmp_path)
    assert part(tmp_path).read_bytes() == server.content[:1000]


def test_a_complete_part_is_verified_and_unpacked(server: Server, tmp_path: Path) -> None:
    part(tmp_path).write_bytes(server.content)
    fetch(server, tmp_path)
    assert server.requests == [f"bytes={len(server.content)}-"]
    assert_whole(tmp_path)


@pytest.mark.parametrize("length", [10, 1_000_000])
def test_a_wrong_sum_deletes_the_part(length: int, server: Server, tmp_path: Path) -> None:
    part(tmp_path).write_bytes(b"x" * length)  # shorter than the archive: resumed; longer: the server says 416
    with pytest.raises(RunError, match="wrong MD5 and was deleted"):
        fetch(server, tmp_path)
    assert list(tmp_path.iterdir()) == []
    fetch(server, tmp_path)
    assert_whole(tmp_path)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    subject = tarfile.TarInfo(name)
    subject.type, subject.linkname = kind, target
    return subject


@pytest.mark.parametrize(
    "evil",
    [
        member("../evil"),
        member("/tmp/evil"),
        member(f"{FOLDER}/../../evil"),
        member("elsewhere/evil"),
        member(f"{FOLDER}/..\\evil"),
        member(f"{FOLDER}/link", tarfile.SYMTYPE, "/etc"),
        member(f"{FOLDER}/link", tarfile.LNKTYPE, f"{FOLDER}/data_batch_1.bin"),
        member(f"{FOLDER}/device", tarfile.CHRTYPE),
        member(f"{FOLDER}/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda m: m.name,
)
def test_an_unsafe_archive_is_refused(
    evil: tarfile.TarInfo, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = archive(evil)
    publish(monkeypatch, server.content)
    root = tmp_path / "root"
    with pytest.raises(RunError, match=r"holds '.*(outside its folder|neither a file nor a folder); nothing was"):
        fetch(server, root)
    assert list(root.iterdir()) == [part(root)]
    assert list(tmp_path.iterdir()) == [root]


def test_an_archive_with_other_files_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content, words in [
        (
            archive(files={"data_batch_1.bin": b"other"}),
            r"its data_batch_1\.bin is missing or has the wrong MD5",
        ),
        (b"not an archive", "cannot be unpacked"),
        (archive()[:50_000], "cannot be unpacked"),
    ]:
        server.content = content
        publish(monkeypatch, content)
        with pytest.raises(RunError, match=words):
            fetch(server, tmp_path)
        assert list(tmp_path.iterdir()) == [part(tmp_path)]
        part(tmp_path).unlink()


def test_the_servers_refusal_is_named(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(RunError, match="the server answered 404 Not Found"):
        fetch(server, tmp_path)


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with Server(b"") as closed:
        url = closed.url
    with pytest.raises(RunError, match=r"cannot be reached .*check the network and run the command again"):
        download("cifar10", tmp_path, quiet, url)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk of .* is full; make room"),
        (errno.EACCES, "cannot be written to; give another folder with --root"),
        (errno.EROFS, "cannot be written to; give another folder with --root"),
        (errno.EIO, r"cannot be written to \("),
    ],
)
def test_a_disk_that_fails_is_one_sentence(
    code: int, words: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, errno.errorcode[code])

    monkeypatch.setattr(module, "_copy", fail)
    with pytest.raises(RunError, match=words):
        fetch(server, tmp_path)


def test_a_root_that_is_a_file_is_a_wrong_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RequestError, match="is not a folder; give a folder with --root"):
            fetch(server, root)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar-10", "no download named 'cifar-10' .*; did you mean 'cifar10'"),
        (
            "stl10",
            r"stl10 is not downloaded here: its publisher offers stl10_binary\.tar\.gz at https://cs\.stanford\.edu",
        ),
        ("imagenet", r"no download named 'imagenet' \(known: cifar10, cifar100\)\.$"),
        ("digits", "comes with the package"),
    ],
)
def test_an_unknown_name(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=words):
        download(name, tmp_path)


def test_other_addresses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="must begin with https:// or http://"):
        download("cifar10", tmp_path, quiet, tmp_path.as_uri())
