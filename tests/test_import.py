"""What importing the package does to a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "import os; os.getloadavg = lambda: ({load}, 0.0, 0.0); import fastswa; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("load", "given", "expected"),
    [
        (0.0, {}, "None"),
        (100.0, {}, "2000"),
        (100.0, {"GOMP_SPINCOUNT": "7"}, "7"),
        (100.0, {"OMP_WAIT_POLICY": "ACTIVE"}, "None"),
    ],
    ids=["idle", "busy", "said otherwise", "said in other words"],
)
def test_threads_spin_less_where_other_work_runs(load: float, given: dict[str, str], expected: str) -> None:
    known = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = CODE.format(load=load)
    answer = subprocess.run([sys.executable, "-c", code], env={**known, **given}, capture_output=True, text=True)
    assert (answer.stdout.strip(), answer.stderr) == (expected, "")
