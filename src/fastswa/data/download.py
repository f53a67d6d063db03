"""CIFAR-10 and CIFAR-100 from their publisher: fetched, resumed where interrupted, checked and unpacked.

The archive goes to ROOT/NAME.part; its MD5 is checked before anything is unpacked, and each file's after.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import gzip
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from fastswa.data.published import ARCHIVES, ELSEWHERE, SUBSET, Archive, md5
from fastswa.errors import FastswaError, RequestError, RunError

BASE_URL = "https://www.cs.toronto.edu/~kriz/"
TIMEOUT = 60.0
_CHUNK = 1 << 18

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Download:
    """What `download` did: the folder with the files, and whether they were fetched or there already."""

    name: str
    folder: Path
    fetched: bool

    @property
    def message(self) -> str:
        """One sentence for the user."""
        if self.fetched:
            return f"{self.name} is in {self.folder}."
        return f"{self.name} is already in {self.folder} and whole; nothing was downloaded."


def download(name: str, root: Path, progress: Progress | None = None, base_url: str = BASE_URL) -> Download:
    """Puts the files of `name` under `root` and says where; a whole copy that is there already is kept.

    `progress(done, total)` is called with bytes as they arrive (total None where the server does not say);
    without it a bar is drawn on stderr. RequestError: the request was wrong. RunError: it failed on the
    way; what has arrived is kept in ROOT/NAME.part, from which the next call goes on.
    """
    archive = _archive(name)
    root = Path(root).expanduser()
    folder = root / archive.folder
    with _writing(root):
        if (folder / SUBSET).exists():
            raise RequestError(f"{folder} is marked as a {SUBSET}; give another folder with --root.")
        if not _damaged(folder, archive):
            return Download(name, folder, fetched=False)
        root.mkdir(parents=True, exist_ok=True)
    part = root / f"{archive.file}.part"
    with _bar(archive.file) if progress is None else contextlib.nullcontext(progress) as report:
        _fetch(base_url.rstrip("/") + "/" + archive.file, part, report)
    with _writing(root):
        if md5(part) != archive.digest:
            part.unlink()
            raise RunError(
                f"{archive.file} arrived with the wrong MD5 and was deleted; run the command again "
                "(if that does not help, the server has another file)."
            )
        _unpack(part, archive, root)
        part.unlink()
    return Download(name, folder, fetched=True)


def _archive(name: str) -> Archive:
    if name in ARCHIVES:
        return ARCHIVES[name]
    if name == "digits":
        raise RequestError("digits comes with the package; there is nothing to download.")
    if name in ELSEWHERE:
        raise RequestError(f"{name} is not downloaded here: {ELSEWHERE[name]}.")
    near = difflib.get_close_matches(name.lower(), ARCHIVES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise RequestError(f"there is no download named {name!r} (known: {', '.join(ARCHIVES)}){hint}")


def _fetch(url: str, part: Path, progress: Progress) -> None:
    """The rest of `url` appended to `part`; all of it, afresh, from a server that ignores Range."""
    start = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "fastswa", **({"Range": f"bytes={start}-"} if start else {})}
    if not url.startswith(("http://", "https://")):
        raise RequestError(f"{url} cannot be downloaded: the address must begin with https:// or http://.")
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and start:  # nothing is left to fetch: the MD5 will tell
                return
            raise RunError(f"{url} cannot be downloaded: the server answered {error.code} {error.reason}.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise RunError(f"{url} cannot be reached ({reason}); check the network and run the command again.") from error
    with response:
        resumed = response.status == 206 and _range_start(response) == start
        if response.status == 206 and not resumed:
            raise RunError(f"{url} cannot be resumed: the server sent another range; delete {part} and try again.")
        done = start if resumed else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        with _writing(part.parent), part.open("ab" if resumed else "wb") as file:
            _copy(response, file, done, total, progress)


def _copy(response: http.client.HTTPResponse, file: BinaryIO, done: int, total: int | None, progress: Progress) -> None:
    """Writes a response as it arrives; RunError where it ends early."""
    cause: Exception | None = None
    progress(done, total)
    while True:
        try:
            chunk = response.read(_CHUNK)
        except http.client.IncompleteRead as error:
            chunk, cause = error.partial, error
        except (OSError, http.client.HTTPException) as error:
            chunk, cause = b"", error
        if chunk:
            file.write(chunk)
            done += len(chunk)
            progress(done, total)
        if cause is not None or not chunk:
            break
    if cause is not None or (total is not None and done < total):
        of = f" of {total:,}" if total is not None else ""
        raise RunError(f"the connection broke after {done:,}{of} bytes; run the command again to go on.") from cause


def _range_start(response: http.client.HTTPResponse) -> int | None:
    """Where the body of a 206 begins, from `Content-Range: bytes START-END/TOTAL`."""
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    start = span.partition("-")[0]
    return int(start) if unit == "bytes" and start.isdigit() else None


def _unpack(path: Path, archive: Archive, root: Path) -> None:
    """The archive's folder under `root`: all of it or nothing, with every file checked."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=root) as scratch:
        try:
            with tarfile.open(path, "r:gz") as tar:
                members = tar.getmembers()
                for member in members:
                    _refuse_unsafe(member, archive)
                # Python before 3.11.4 has no filters; the check above does not depend on them.
                safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                tar.extractall(scratch, members, **safely)  # type: ignore[arg-type]
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise RunError(f"{archive.file} cannot be unpacked: {error}.") from error
        fresh, folder = Path(scratch) / archive.folder, root / archive.folder
        damaged = _damaged(fresh, archive)
        if damaged:
            raise RunError(f"{archive.file} cannot be used: its {damaged} is missing or has the wrong MD5.")
        if not folder.exists():
            fresh.rename(folder)
            return
        for file in fresh.iterdir():  # a damaged copy is mended file by file; what else lies there stays
            os.replace(file, folder / file.name)


def _refuse_unsafe(member: tarfile.TarInfo, archive: Archive) -> None:
    """RunError for anything but plain files and folders inside the archive's own folder."""
    path = PurePosixPath(member.name)
    inside = path.parts[:1] == (archive.folder,) and ".." not in path.parts and "\\" not in member.name
    if not inside or not (member.isfile() or member.isdir()):
        what = "outside its folder" if not inside else "that is neither a file nor a folder"
        raise RunError(f"{archive.file} holds {member.name!r}, {what}; nothing was unpacked.")


def _damaged(folder: Path, archive: Archive) -> str | None:
    """The name of the first file that is missing or has the wrong MD5; None where all are whole."""
    for name, digest in archive.files.items():
        if not (folder / name).is_file() or md5(folder / name) != digest:
            return name
    return None


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Turns the failures of a disk into one sentence about `root`."""
    try:
        yield
    except FastswaError:
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise RequestError(f"{root} is not a folder; give a folder with --root.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"the disk of {root} is full; make room and run the command again to go on.") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise RunError(f"{root} cannot be written to; give another folder with --root.") from error
        raise RunError(f"{root} cannot be written to ({error.strerror or error}).") from error


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Progress]:
    """A rich progress bar on stderr, as a function of the bytes done and their total."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Bar(TextColumn("{task.description}"), *columns, console=Console(stderr=True))
    task = bar.add_task(title, total=None)

    def report(done: int, total: int | None) -> None:
        bar.start()  # at the first byte, so that a server out of reach leaves no empty bar
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()
