"""Rows: written, added to and read back."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from daedl_bench.table import DASH, tabulate
from made import row

from daedl_bench import rows
from daedl_bench.rows import Measured


def a_row(
    value: float = 0.5, method: str = "edl", data: str = "noise", score: str = "epistemic"
) -> rows.Row:
    measured = Measured("ood", score, "aupr", value)
    return rows.row(measured, experiment="digits", method=method, data=data, seed=3, seconds=1.234)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first, second = a_row(0.25), a_row(float("nan"))
    rows.append(path, [first])
    rows.append(path, [second])
    assert rows.load(path) == [first, second]
    assert second.value is None
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [3, 3]
    rows.save(path, [second])
    assert rows.load(path) == [second]


def test_a_last_line_without_its_end_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows.save(path, [a_row()])
    path.write_text(path.read_text().rstrip("\n"))
    rows.append(path, [a_row()])
    assert len(rows.load(path)) == 2


@pytest.mark.parametrize("line", ["{", '{"experiment": "digits"}', "5"])
def test_what_is_not_a_row_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    rows.save(path, [a_row()])
    path.write_text(path.read_text() + line + "\n" + path.read_text())
    with pytest.raises(ValueError, match=r"line 2 of .*expected one JSON object"):
        rows.load(path)


@pytest.mark.parametrize("end", ["\n", "\n\n", "\0\0\0\n"])
def test_what_follows_the_last_row_is_no_row(tmp_path: Path, end: str) -> None:
    path = tmp_path / "rows.jsonl"
    rows.save(path, [a_row()])
    path.write_text(path.read_text() + end)
    rows.append(path, [a_row()])
    assert rows.load(path) == [a_row(), a_row()]


def test_the_table_reads_rows_and_dashes_what_is_missing() -> None:
    found = [a_row(0.75), a_row(0.5, "softmax", score="aleatoric"), a_row(0.125, data="unknown")]
    table = tabulate(found, "title", [("noise", "against noise")])
    (section,) = table.sections
    lines = dict(section.lines)
    assert table.methods == ("edl", "softmax")
    assert lines["AUPR, epistemic ↑"] == ("75.00", DASH)
    assert lines["AUPR, aleatoric ↑"] == (DASH, "50.00")
    assert table.rich().row_count == 1 + len(lines)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_broken_last_line_is_left_out_and_reported(tmp_path, end):
    path = tmp_path / "rows.jsonl"
    figure = rows.row(
        rows.Measured("task", "score", "metric", 0.5),
        experiment="e",
        method="m",
        data="d",
        seed=0,
        seconds=1.0,
    )
    # Two methods of one seed, as two moons are measured: one without the other would count as done.
    others = [replace(figure, seed=1, method=method) for method in ("m", "m", "n")]
    rows.save(path, [figure, *others])
    path.write_bytes(path.read_bytes()[:-20] + "é".encode()[:1] + end)
    with pytest.warns(
        rows.RowsWarning, match=rf"last line of {path} is broken and left out, with 2 rows"
    ):
        assert rows.load(path) == [figure]
    with pytest.warns(rows.RowsWarning):
        rows.append(path, [figure])
    assert rows.load(path) == [figure, figure]


def test_under_a_protocol_a_broken_line_costs_the_rows_of_its_data_set_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    found = [
        row("daedl", data, "ood", "epistemic", metric, 0.5)
        for data in ("kmnist", "noise")
        for metric in ("aupr", "auroc", "fpr95")
    ]
    rows.save(path, found)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(rows.RowsWarning, match="with 2 rows .* missing until"):
        assert rows.load(path) == found[:3]


def test_several_processes_may_append_to_a_file(tmp_path):
    """Each writes its rows in one go at the end: none are lost."""
    path = tmp_path / "rows.jsonl"
    code = (
        "import sys, pathlib; from daedl_bench import rows\n"
        "for i in range(40):\n"
        "    row = rows.row(rows.Measured('t', 's', 'm', i), experiment='e', method=sys.argv[2], "
        "data='d' * 3000, seed=i, seconds=1.0)\n"
        "    rows.append(pathlib.Path(sys.argv[1]), [row] * 3)\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("a", "b")
    ]
    assert [each.wait() for each in started] == [0, 0]
    found = rows.load(path)
    assert len(found) == 240
    assert {(row.method, row.seed) for row in found} == {(m, i) for m in "ab" for i in range(40)}
