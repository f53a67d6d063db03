"""The command line: find the verb, run it, turn what goes wrong into one sentence and an exit code."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from textwrap import wrap

from fastswa import __version__
from fastswa.arguments import Arguments, Verb
from fastswa.errors import FastswaError, RequestError
from fastswa.registry import nearest
from fastswa.verbs import VERBS

# The command's beginning, as early as we can know it.
_STARTED = time.monotonic()


def _help() -> str:
    width = min(shutil.get_terminal_size((120, 0)).columns, 120)
    indent = " " * 6
    lines = []
    for verb in VERBS.values():
        lines += [f"  {verb.usage}", *wrap(verb.summary, width, initial_indent=indent, subsequent_indent=indent)]
    return "\n".join(
        [
            "fastswa: accurate image classifiers from few labels, by consistency training with fast-SWA.",
            "",
            *lines,
            "",
            "`fastswa VERB --help` says more. --debug shows a traceback; --version the version.",
        ]
    )


def _verb_help(verb: Verb) -> str:
    text = f"fastswa {verb.usage}\n\n{verb.summary[0].upper()}{verb.summary[1:]}."
    text += f"\n{verb.details}" if verb.details else ""
    text += "\n\nOptions: " + " ".join(verb.options)
    if verb.settings != "none":
        from fastswa.config import RESUMABLE
        from fastswa.layers import ALIASES, fields

        short = {path: name for name, path in ALIASES.items()}
        rows = []
        for path, field in fields():
            if verb.settings == "resumable" and path not in RESUMABLE:
                continue
            name = f"--{path}" + (f", --{short[path]}" if path in short else "")
            rows.append(f"  {name:<40} {field.description}{_default(field.default) if verb.settings == 'all' else ''}")
        text += "\n\nSettings:\n" + "\n".join(rows)
    return text


def _default(value: object) -> str:
    """What a setting is where nobody gives it, in the words of a flag; nothing where it is empty."""
    if value in (None, (), {}):
        return ""
    return f" [{str(value).lower() if isinstance(value, bool) else value}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 (done), 1 (failed while running) or 2 (the request was wrong)."""
    words = list(sys.argv[1:] if argv is None else argv)
    began = _STARTED if argv is None else time.monotonic()
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A name that the terminal's alphabet lacks is shown by its number, as on standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        code = _dispatch(words, began)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except FastswaError as error:
        if debug:
            raise
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted.")
        return 1
    except BrokenPipeError:
        # Nobody reads any more; what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except PermissionError as error:
        if debug:
            raise
        _complain(f"{error.filename or 'a file'} may not be read or written: {error.strerror}.")
        return 1
    except Exception as error:
        if debug:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        _complain(f"failed: {reason} (--debug shows where).")
        return 1


def _complain(sentence: str) -> None:
    """Say what is wrong; the exit code says it too where that cannot be written."""
    with suppress(OSError):
        print(f"fastswa: {sentence}", file=sys.stderr)


def _dispatch(words: list[str], began: float) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(_help())
        return 0
    if words[0] == "--version":
        print(f"fastswa {__version__}")
        return 0
    name, *rest = words
    if name not in VERBS:
        raise RequestError(f"unknown command '{name}'; {nearest(name, VERBS)}")
    verb = VERBS[name]
    if "--help" in rest or "-h" in rest:
        print(_verb_help(verb))
        return 0
    return verb.run(Arguments(name, verb, rest, began))


if __name__ == "__main__":
    sys.exit(main())
