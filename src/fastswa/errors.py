"""The two ways in which a command can end badly; each carries one sentence for the user."""


class FastswaError(Exception):
    """A failure whose message is one clear sentence; `exit_code` is what the command line returns."""

    exit_code = 1


class RequestError(FastswaError):
    """The request was wrong: a setting, a file or a name that cannot be used as given (exit code 2)."""

    exit_code = 2


class RunError(FastswaError):
    """The request was fine, but the run failed; what it had saved is kept (exit code 1)."""


def installing(extra: str) -> str:
    """How to get what an extra of the package brings: no index has the package itself."""
    return f"`pip install '.[{extra}]'` in fastswa's folder"
