"""published.csv against the tables as the paper prints them."""

from __future__ import annotations

from collections import Counter

import pytest

from fastswa.errors import RequestError
from fastswa.tables.published import Published, all_published, published


def test_every_line_is_read() -> None:
    assert Counter(cell.table for cell in all_published()) == {
        "cifar10-cnn": 108,
        "cifar100-cnn": 58,
        "cifar10-shake-short": 51,
        "cifar10-shake-long": 51,
        "cifar100-shake-short": 24,
        "domain-adaptation": 5,
    }


def test_cells_carry_the_printed_figures() -> None:
    cells = published("cifar10-cnn")
    assert (
        Published(
            "cifar10-cnn", "cifar10", "cnn13", 4000, "", "mean-teacher", "fast-swa", 180, 10.67, 0.18, "this paper"
        )
        in cells
    )
    (entmin,) = [cell for cell in cells if cell.method == "vat-entmin" and cell.quoted]
    assert (entmin.labels, entmin.epoch, entmin.error, entmin.std) == (4000, None, 10.55, None)
    extra = {
        (cell.extra, cell.averaging): cell.error for cell in published("cifar100-shake-short") if cell.epoch == 300
    }
    assert extra == {
        ("", "swa"): 18.5,
        ("", "fast-swa"): 18.4,
        ("tiny-500k", "swa"): 18.9,
        ("tiny-500k", "fast-swa"): 19.3,
        ("tiny-237k", "swa"): 17.5,
        ("tiny-237k", "fast-swa"): 17.7,
    }
    assert {cell.labels for cell in published("domain-adaptation")} == {None}


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(RequestError, match=r"unknown table 'cifar10-cn'; did you mean cifar10-cnn\?"):
        published("cifar10-cn")
