"""Rows: written, appended, read back, and summarised."""

import json
import multiprocessing
import statistics
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from daedl.evaluate import Measured
from daedl_bench import results


def a_row(
    value: float = 0.5, method: str = "edl", data: str = "noise", score: str = "epistemic"
) -> results.Row:
    measured = Measured("ood", score, "aupr", value)
    return results.row(
        measured, experiment="digits", method=method, data=data, seed=3, seconds=1.234
    )


def test_rows_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first, second = a_row(0.25), a_row(float("nan"))
    results.append(path, [first])
    results.append(path, [second])
    assert results.load(path) == [first, second]
    assert second.value is None
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [3, 3]
    results.save(path, [second])
    assert results.load(path) == [second]


def test_a_last_line_without_newline_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    results.save(path, [a_row()])
    path.write_text(path.read_text().rstrip("\n"))
    results.append(path, [a_row()])
    assert len(results.load(path)) == 2


@pytest.mark.parametrize("line", ["{", '{"experiment": "digits"}', "5"])
def test_a_line_that_is_not_a_row_is_reported(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    results.save(path, [a_row()])
    path.write_text(path.read_text() + line + "\n" + path.read_text())
    with pytest.raises(ValueError, match="line 2"):
        results.load(path)


def test_blank_lines_at_the_end_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    results.save(path, [a_row()])
    path.write_text(path.read_text() + "\n\n")
    results.append(path, [a_row()])
    assert results.load(path) == [a_row(), a_row()]


def append_forty(path, method):
    for seed in range(40):
        results.append(path, [replace(a_row(method=method), data="d" * 3000, seed=seed)] * 3)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_several_processes_append_to_one_file(tmp_path):
    """No row is lost."""
    path, context = tmp_path / "rows.jsonl", multiprocessing.get_context("fork")
    started = [context.Process(target=append_forty, args=(path, name)) for name in ("a", "b")]
    for each in started:
        each.start()
    for each in started:
        each.join()
    assert [each.exitcode for each in started] == [0, 0]
    found = results.load(path)
    assert len(found) == 240
    assert {(row.method, row.seed) for row in found} == {(m, i) for m in "ab" for i in range(40)}


def test_a_frame_has_the_fields_of_a_row_as_columns():
    rows = [a_row(0.25), a_row(float("nan"), method="daedl")]
    table = results.frame(rows)
    assert list(table.columns) == [each.name for each in fields(results.Row)]
    assert table["value"].isna().tolist() == [False, True]
    assert results.frame([]).columns.tolist() == table.columns.tolist()


def test_fields_that_a_file_lacks_have_their_defaults_in_the_frame(tmp_path):
    old = {key: value for key, value in asdict(a_row()).items() if key not in ("spec", "made")}
    (tmp_path / "rows.jsonl").write_text(json.dumps(old) + "\n")
    (line,) = results.frame(results.load(tmp_path / "rows.jsonl")).to_dict("records")
    assert (line["spec"], line["made"]) == ("", False)


def test_summaries_count_defined_values():
    values = {0: 0.2, 1: 0.4, 2: float("nan")}
    rows = [replace(a_row(value), seed=seed) for seed, value in values.items()]
    (line,) = results.summarise(results.frame(rows)).itertuples(index=False)
    assert line.mean == pytest.approx(0.3)
    assert line.std == pytest.approx(statistics.stdev([0.2, 0.4]))
    assert line.n == 2
