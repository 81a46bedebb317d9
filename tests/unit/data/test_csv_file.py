"""CSV files of numbers and of texts are read alike."""

import pytest

from daedl.data.table import read_table
from daedl.data.texts import read_text_set


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_texts_may_contain_separators_and_line_breaks(tmp_path, separator):
    path = tmp_path / "a.csv"
    lines = (("query", "intent"), ('"pay, my; \tbill\nnow"', "money"), ("goal", "sports"))
    path.write_text("\n\n".join(separator.join(line) for line in lines))
    found = read_text_set(path, "query", "intent")
    assert found.texts == ["pay, my; \tbill\nnow", "goal"]
    assert found.class_names == ("money", "sports")


def test_a_separator_within_a_quoted_name_is_not_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"size; in; m",y\n1,2\n')
    assert read_table(path, ["size; in; m"], ["y"]).targets.tolist() == [[2]]


def test_errors_name_the_line_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,y\n\n1,2\n\n1,red\n")
    with pytest.raises(ValueError, match="line 5, column 'y'"):
        read_table(path, ["a"], ["y"])
    path.write_text('query,intent\n"open,money\n')
    with pytest.raises(ValueError, match=r"line 2 .*can't be read"):
        read_text_set(path, "query", "intent")
