"""The README says what the rows say."""

import runpy
from pathlib import Path

from daedl.bench.comparison import measured
from daedl.bench.spec import catalogue

ROOT = Path(__file__).parents[2]


def test_the_table_of_every_method_is_that_of_the_rows():
    script = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))
    found = measured.load(ROOT / "benchmarks" / "results", catalogue())
    page = (ROOT / "README.md").read_text("utf-8")
    assert script["held"](page) == script["lines"](found), "run: python benchmarks/readme.py"
