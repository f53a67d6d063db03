"""Processes that read image files: tasks in, outcomes out, the pixels into rows of an .npy file or with the outcome."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from fastswa.data.decode import Header, own_process, read_header, read_if_fitting
from fastswa.errors import RequestError, RunError

# What a file turned out to be, in Outcome.facts and Outcome.written; 0 in both: not known yet.
GREY, COLOUR, UNREADABLE = 1, 3, -1
WRITTEN, BAD = 1, 2


class Task(NamedTuple):
    """Files to look at and, where `shape` (C, H, W) is given, to decode into rows of a `target` of `total` rows.

    Without a target the pixels come back with the outcome.
    """

    rows: list[int]
    paths: list[str]
    target: str | None = None
    total: int = 0
    shape: tuple[int, int, int] | None = None
    exact: bool = False


class Outcome(NamedTuple):
    """What became of a task: (n, 3) int32 of height, width and kind, (n,) whether written, reasons by row.

    `pixels` (n, C, H, W), for a task without a target, mean something where `written` says so.
    """

    rows: list[int]
    facts: np.ndarray
    written: np.ndarray
    refused: dict[int, str]
    pixels: np.ndarray | None = None


class Workers:
    """Processes that do tasks, started when first needed or by `start`, ended with the `with` block.

    Processes, because most of the time of a small file goes into Python, which threads would take turns at.
    Plain subprocesses, because multiprocessing would run the caller's script anew in each.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        """Has `count` processes running."""
        program = "import sys; sys.path[:] = sys.argv[1:]; from fastswa.data.workers import _serve; _serve()"
        command = [sys.executable, "-c", program, *sys.path]
        # They do no linear algebra: without its threads NumPy is there in two thirds of the time.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        while len(self._processes) < count:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what a dead process never took cannot be flushed
                    assert pipe is not None
                    pipe.close()
        for process in self._processes:
            process.wait()

    def run(self, tasks: Iterable[Task], count: int) -> Generator[Outcome, None, None]:
        """The outcomes of the tasks, as they are done, by `count` processes (0: by this one)."""
        if count < 1:
            yield from map(decode_task, tasks)
            return
        self.start(count)
        queue, taking, stopping = iter(tasks), threading.Lock(), threading.Event()
        results: SimpleQueue[Outcome | BaseException | None] = SimpleQueue()

        def take() -> Task | None:
            with taking:
                return next(queue, None)

        def serve(process: subprocess.Popen[bytes]) -> None:
            try:
                task = take()
                while task is not None and not stopping.is_set():
                    _send(process, task)
                    following = take()  # while the process works
                    results.put(_receive(process, task))
                    task = following
            except BaseException as error:
                results.put(error)
            finally:
                results.put(None)

        threads = [threading.Thread(target=serve, args=(p,), daemon=True) for p in self._processes[:count]]
        for thread in threads:
            thread.start()
        try:
            running = count
            while running:
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    running -= 1
                else:
                    yield result
        finally:
            stopping.set()
            for thread in threads:
                thread.join()

    def in_order(self, tasks: Iterable[Task], count: int) -> Generator[Outcome, None, None]:
        """The outcomes in the order of the tasks; each process is at most two tasks ahead of the reader."""
        if count < 1:
            yield from map(decode_task, tasks)
            return
        self.start(count)
        idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._processes[:count]:
            idle.put(process)

        def ask(task: Task) -> Outcome:
            process = idle.get()
            try:
                _send(process, task)
                return _receive(process, task)
            finally:
                idle.put(process)

        pool = ThreadPoolExecutor(count)
        waiting: deque[Future[Outcome]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(ask, task))
                if len(waiting) > 2 * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def cores() -> int:
    """How many processes this one may have running at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_task(task: Task) -> Outcome:
    """Does one task in this process."""
    facts, written, refused = [], [], {}
    block = None if task.shape is None else np.empty((len(task.rows), *task.shape), np.uint8)
    for place, path in enumerate(task.paths):
        header, pixels, reason = _attempt(path, task)
        facts.append((0, 0, UNREADABLE) if header is None else (header[0], header[1], GREY if header[2] else COLOUR))
        if reason is not None:
            refused[task.rows[place]] = reason
            written.append(BAD)
        elif pixels is None or block is None:
            written.append(0)
        else:
            block[place] = pixels
            written.append(WRITTEN)
    outcome = Outcome(task.rows, np.array(facts, np.int32), np.array(written, np.uint8), refused)
    if block is None:
        return outcome
    if task.target is None:
        return outcome._replace(pixels=block)
    _write(block, outcome, task.target, task.total)
    return outcome


def _write(block: np.ndarray, outcome: Outcome, target: str, total: int) -> None:
    """Puts decoded images, (n, C, H, W), into their rows of an .npy file, neighbours together."""
    rows, good = np.array(outcome.rows), np.flatnonzero(outcome.written == WRITTEN)
    breaks = np.flatnonzero((np.diff(good) != 1) | (np.diff(rows[good]) != 1)) + 1
    with open(target, "r+b", buffering=0) as file:
        for run in np.split(good, breaks):
            if len(run):
                pixels = block[run[0] : run[-1] + 1]
                # The rows end where the file ends, whatever the length of its head.
                file.seek((int(rows[run[0]]) - total) * block[0].nbytes, os.SEEK_END)
                if file.write(pixels.data) != pixels.nbytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)


def _attempt(path: str, task: Task) -> tuple[Header | None, np.ndarray | None, str | None]:
    """Header, pixels and the reason for which one of them is missing."""
    try:
        if task.shape is None:
            return read_header(path), None, None
        channels, height, width = task.shape
        return *read_if_fitting(path, channels=channels, size=(height, width), exact=task.exact), None
    except RequestError as error:
        with suppress(RequestError):
            if os.path.isfile(path):  # what came out of a pipe does not come again
                return read_header(path), None, str(error)
        return None, None, str(error)


def _send(process: subprocess.Popen[bytes], task: Task) -> None:
    """Gives a process a task."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # a dead process is noticed when it does not answer
        pickle.dump(task, process.stdin, pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()


def _receive(process: subprocess.Popen[bytes], task: Task) -> Outcome:
    """What became of the task that a process was given."""
    assert process.stdout is not None
    try:
        answer = pickle.load(process.stdout)
    except (EOFError, pickle.UnpicklingError) as error:
        raise RunError(
            f"a process that reads images died somewhere between {task.paths[0]} and {task.paths[-1]}; "
            "run the command again to go on."
        ) from error
    if isinstance(answer, BaseException):
        raise answer
    assert isinstance(answer, Outcome)
    return answer


def _serve() -> None:
    """The life of a worker: tasks from stdin, outcomes to stdout, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    own_process()
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an image called /dev/stdin would swallow the tasks
    os.dup2(2, 1)
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            os._exit(0)  # at once: nothing is left to be tidied up
        try:
            answer: Outcome | Exception = decode_task(task)
        except Exception as error:
            answer = error
        try:
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:  # the parent is gone
            os._exit(1)
