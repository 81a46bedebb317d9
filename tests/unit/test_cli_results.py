"""Output of results: escaping, formats and alignment."""

import csv
import json
import math

import pytest
import torch

from daedl.classifier import Classifier
from daedl.cli.outcome import description
from daedl.cli.results import Format, make_table, printable, write_records
from daedl.data import ImageSet
from daedl.networks import ConvNet


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("caf\u00e9 [bold] \u732b", "caf\u00e9 [bold] \u732b"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\r\nb\tc\x7f", "a\\r\\nb\\tc\\x7f"),
        ("\x9b31m\u2028", "\\x9b31m\\u2028"),
        ("a\u202etxt.exe\u2066", "a\\u202etxt.exe\\u2066"),
    ],
)
def test_control_characters_are_escaped(text, expected):
    assert printable(text) == expected


@pytest.mark.parametrize("text", ["=SUM(A1)", "+1", "-1", "@cmd"])
def test_csv_text_is_no_formula(tmp_path, text):
    """Numbers stay numbers, negative ones too."""
    record = {"class": text, "value": -1.5, "undefined": math.nan}
    table = make_table(["class"], [[text]])
    write_records([record], table, Format.CSV, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        (line,) = csv.DictReader(file)
    assert line == {"class": f"'{text}", "value": "-1.5", "undefined": ""}
    write_records([record], table, Format.JSON, tmp_path / "out.json")
    stored = json.loads((tmp_path / "out.json").read_text())
    assert stored == [{"class": text, "value": -1.5, "undefined": None}]


def test_table_cells(tmp_path):
    table = make_table(["name", "a", "b"], [["[red]\x1b", 0.5, None], ["y", 2e-5, math.inf]])
    write_records([], table, Format.TABLE, tmp_path / "out.txt")
    head, _, first, second = (tmp_path / "out.txt").read_text().splitlines()
    assert head.split() == ["name", "a", "b"]
    assert first.split() == ["[red]\\x1b", "0.5000"]
    assert second.split() == ["y", "2e-05", "–"]


@pytest.mark.parametrize(
    ("name", "form", "start"),
    [
        ("a.csv", None, "x\n"),
        ("a.JSON", None, "[\n"),
        ("a.txt", None, "  x"),
        ("a", None, "  x"),
        ("a.csv", Format.TABLE, "  x"),
        ("a.txt", Format.CSV, "x\n"),
    ],
)
def test_the_suffix_of_a_file_is_its_format_unless_one_is_given(tmp_path, name, form, start):
    write_records([{"x": 0.5}], make_table(["x"], [[0.5]]), form, tmp_path / name)
    assert (tmp_path / name).read_text().startswith(start)


def test_headings_are_escaped(tmp_path):
    """Names of targets are headings."""
    name = "=1+1\x1b[31m[red]"
    record, table = {name: 0.5}, make_table([name], [[0.5]])
    write_records([record], table, Format.CSV, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "'=1+1\\x1b[31m[red]\n0.5\n"
    write_records([record], table, Format.TABLE, tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text().split()[0] == "=1+1\\x1b[31m[red]"


def test_class_names_that_training_prints_are_escaped():
    pixels, names = torch.zeros(2, 1, 8, 8, dtype=torch.uint8), ("\x1b[2Jcat", "dog")
    images = ImageSet(pixels, torch.arange(2), "images", "train", names)
    model = Classifier(ConvNet(1, 2, 8, channels=2), "softmax")
    assert "\\x1b[2Jcat, dog" in description(images, images, model)
