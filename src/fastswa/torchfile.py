"""Files that torch wrote, read without running code from them."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch


class DamagedError(ValueError):
    """A file that is no whole one of torch's."""


def read_torch(path: Path) -> Any:
    """What a file holds, on the CPU; pickle.UnpicklingError where it cannot be read without running code from it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged one can raise nearly anything
        raise DamagedError(f"{path} is damaged") from error
