"""The paper's tables beside made rows: summaries, marks, gaps, and the two forms of the page."""

import json
import math
import re
from functools import partial
from html.parser import HTMLParser

import pytest
from made import row

from daedl.demo.moons import Settings
from daedl_bench import paper, rows
from daedl_bench.comparison import (
    further,
    measured,
    missing,
    page,
    protocols,
)
from daedl_bench.comparison.compare import (
    Cell,
    compare,
    mark,
    tally,
    text,
)
from daedl_bench.comparison.measured import Measurements, Summary
from daedl_bench.datasets import corrupted_sets
from daedl_bench.spec import catalogue, cell_key, mispaired_key

SPEC = """
[protocol.mnist-quick]
title = "a quick one"
data = "mnist"
split = [48000, 12000]
network = { name = "ConvNet", in_channels = 1, num_classes = 10 }
training = { max_epochs = 4, batch_size = 64, learning_rate = 3e-3, schedule = "one-cycle", patience = 4 }
rates = { edl = 1e-3 }

[protocol.mnist-paper]
title = "the paper's"
data = "mnist"
split = [48000, 12000]
network = { name = "ConvNet", in_channels = 1, num_classes = 10 }
training = { max_epochs = 50, batch_size = 64, learning_rate = 1e-3, lr_decay = 0.95, patience = 10 }

[protocol.cifar10-paper]
title = "the paper's"
data = "cifar10"
split = [47500, 2500]
network = { name = "VGG16", in_channels = 3, num_classes = 10 }
training = { max_epochs = 100, batch_size = 64, learning_rate = 1e-3 }
augment = ["flip", "crop"]

[method]
softmax = { name = "softmax" }
edl = { name = "edl" }
"edl+" = { name = "edl+" }
daedl = { name = "daedl" }
daedl-loo = { name = "daedl", leave_one_out = true }
exp = { name = "edl+" }
"exp+de+sn" = { name = "daedl" }

[experiment.two-moons]
title = "moons"
kind = "moons"
methods = ["softmax", "daedl"]
settings.samples = 10
settings.noise = 0.1
settings.hidden = [4]
settings.training = { max_epochs = 1, batch_size = 5, patience = 1 }

[experiment.mnist-ood]
title = "OOD"
protocols = { quick = "mnist-quick", paper = "mnist-paper" }
methods = ["daedl", "edl"]
test = "mnist"
ood = ["kmnist", "fashion-mnist"]

[experiment.mnist-shift]
title = "shift"
protocols = { quick = "mnist-quick", paper = "mnist-paper" }
methods = ["daedl", "edl"]
test = "mnist"
shift = "mnist-c"

[experiment.ablation-mnist]
title = "ablation"
protocols = { quick = "mnist-quick", paper = "mnist-paper" }
methods = ["edl", "exp", "exp+de+sn"]
test = "mnist"
ood = ["kmnist", "fashion-mnist"]

[experiment.cifar10-ood]
title = "OOD"
protocols = { paper = "cifar10-paper" }
methods = ["daedl", "edl"]
test = "cifar10"
ood = ["svhn", "cifar100"]

[experiment.cifar10-calibration]
title = "calibration"
protocols = { paper = "cifar10-paper" }
methods = ["daedl", "edl"]
test = "cifar10"

[experiment.cifar10-shift]
title = "shift"
protocols = { paper = "cifar10-paper" }
methods = ["daedl", "edl"]
test = "cifar10"
shift = "cifar10-c"
"""
CATALOGUE = catalogue(SPEC)


def found(*made):
    return Measurements(CATALOGUE, tuple(made))


def ood(method, values, data="kmnist", score="epistemic", metric="aupr", **fields):
    return [
        row(method, data, "ood", score, metric, value, seed, **fields)
        for seed, value in enumerate(values)
    ]


def summary(measurements, method="daedl", protocol="mnist-quick"):
    return measurements.summary(protocol, method, "kmnist", "ood", "epistemic", "aupr")


def group(comparison, block, method):
    (found,) = [each for each in comparison.blocks[block].groups if each.method == method]
    return found


class TestSummary:
    def test_mean_and_deviation_over_seeds(self):
        assert Summary.of([0.9, 0.8, 0.7]) == Summary(pytest.approx(0.8), pytest.approx(0.1), 3)
        assert Summary.of([0.9]) == Summary(0.9, None, 1)
        assert Summary.of([0.9, None]) == Summary(0.9, None, 1)
        nothing = Summary.of([None])
        assert math.isnan(nothing.mean)
        assert text(nothing) == "undefined"

    def test_text(self):
        assert text(Summary(0.99854, 0.00031, 5)) == "99.85 ± 0.03"
        assert text(Summary(0.99854, None, 1), count=True) == "99.85 (1)"
        assert text(Summary(1234.4, 10.0, 3), scale=1, digits=0) == "1,234 ± 10"


class TestMeasurements:
    def test_a_figure_of_two_experiments_counts_once(self):
        again = ood("daedl", [0.9, 0.8], experiment="ablation-mnist")
        assert summary(found(*ood("daedl", [0.9, 0.8]), *again)).n == 2

    def test_the_last_of_two_rows_counts(self):
        assert summary(found(*ood("daedl", [0.9]), *ood("daedl", [0.8]))).mean == 0.8

    def test_rows_of_other_settings_are_left_out(self):
        """Also under another label of the same method, and of seeds that weren't measured again."""
        key = cell_key(CATALOGUE.protocols["mnist-quick"], CATALOGUE.method("daedl"), 0)
        old = [
            *ood("daedl", [0.8, 0.7], spec="old"),
            *ood("exp+de+sn", [0.5, 0.5], spec="old", experiment="ablation-mnist"),
            *ood("edl", [0.6], spec="old"),
            *ood("daedl-mispaired", [0.6], spec="old"),
        ]
        measurements = found(*ood("daedl", [0.9], spec=key), *old)
        assert summary(measurements) == Summary.of([0.9])
        assert summary(measurements, "edl") is None
        assert measurements.methods("mnist-quick") == ["daedl"]
        assert measurements.stale == 6

    def test_moons_of_other_settings_are_left_out(self):
        moons = {"experiment": "two-moons", "protocol": ""}
        figure = partial(row, "daedl", "far", "uncertainty", "aleatoric", "mean", **moons)
        measurements = found(
            figure(0.9, spec=Settings.of(CATALOGUE).key()), figure(0.1, seed=1, spec="old")
        )
        assert measurements.moons["daedl", "far"] == Summary.of([0.9])
        assert measurements.stale == 1

    def test_a_shuffled_density_is_kept_with_the_cell_it_belongs_to(self):
        key = cell_key(CATALOGUE.protocols["mnist-quick"], CATALOGUE.method("daedl"), 0)
        measurements = found(*ood("daedl-mispaired", [0.6], spec=mispaired_key(key)))
        assert summary(measurements, "daedl-mispaired").mean == 0.6

    def test_equal_methods_share_their_rows(self):
        measurements = found(
            *ood("exp+de+sn", [0.9], experiment="ablation-mnist"), *ood("daedl", [0.9, 0.8])
        )
        assert summary(measurements, "exp+de+sn") == summary(measurements, "daedl")
        assert summary(measurements).n == 2
        assert measurements.methods("mnist-quick") == ["daedl"]

    def test_protocols_are_apart_and_in_the_catalogues_order(self):
        measurements = found(
            *ood("daedl", [0.7], protocol="mnist-paper"), *ood("daedl", [0.9, 0.8])
        )
        assert measurements.protocols("mnist") == ["mnist-quick", "mnist-paper"]
        assert measurements.protocols("cifar10") == []
        assert summary(measurements, protocol="mnist-paper").mean == 0.7

    def test_a_protocol_that_the_catalogue_lost_is_known_by_its_test_set(self):
        old = row("edl", "mnist", "classification", "labels", "accuracy", 0.9, protocol="mnist-old")
        assert found(old).protocols("mnist") == ["mnist-old"]

    def test_rows_of_other_experiments_and_without_protocol_are_left_out(self):
        choice = ood("daedl", [0.1], experiment="mnist-quick-choice")
        assert found(*choice, *ood("daedl", [0.1], protocol="")).summaries == {}

    def test_a_folder_may_hold_other_things(self, tmp_path):
        rows.save(tmp_path / "mnist-ood.jsonl", ood("daedl", [0.9]))
        (tmp_path / "speed.jsonl").write_text(json.dumps({"benchmark": "speed"}) + "\n")
        (tmp_path / "empty.jsonl").write_text("")
        assert summary(measured.load(tmp_path, CATALOGUE)).n == 1

    def test_damaged_rows_and_missing_results_are_told(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no results in .* name their folder"):
            measured.load(tmp_path, CATALOGUE)
        (tmp_path / "rows.jsonl").write_text("{half\n{}\n")
        with pytest.raises(ValueError, match=r"line 1 of .*rows.jsonl is not a row"):
            measured.load(tmp_path, CATALOGUE)


class TestMarks:
    @pytest.mark.parametrize(
        ("mean", "deviation", "metric", "expected"),
        [
            (0.990, 0.001, "aupr", "▲"),
            (0.970, 0.001, "aupr", "▼"),
            (0.9805, 0.001, "aupr", "="),
            (0.983, 0.003, "aupr", "="),  # 0.3 apart, 0.3 + 0.2 + 0.05 allowed
            (0.983, 0.0, "aupr", "▲"),
            (0.983, None, "aupr", "="),  # one seed: 2 (0.2 + 0.05) allowed
            (0.986, None, "aupr", "▲"),
            (0.990, 0.001, "brier", "▼"),
            (0.970, 0.001, "brier", "▲"),
            (math.nan, None, "aupr", ""),
        ],
    )
    def test_rule(self, mean, deviation, metric, expected):
        assert mark(Summary(mean, deviation, 3), paper.Cell(98.0, 0.2), metric) == expected

    def test_a_published_deviation_of_zero_may_have_been_rounded(self):
        assert mark(Summary(0.99949, 0.0, 5), paper.Cell(99.90, 0.0), "aupr") == "="
        assert mark(Summary(0.99951, 0.0, 5), paper.Cell(99.90, 0.0), "aupr") == "▲"


class TestCompare:
    def test_published_and_ours_stand_below_each_other(self):
        made = [
            *ood("daedl", [0.9992, 0.9994]),
            *ood("daedl", [0.99, 0.98], score="aleatoric"),
            *ood("daedl", [0.97], protocol="mnist-paper"),
        ]
        comparison = compare(paper.table("ood-aupr"), found(*made))
        assert [block.known for block in comparison.blocks] == ["MNIST", "CIFAR-10"]
        assert comparison.blocks[0].columns[1] == ("→ KMNIST", "epistemic AUPR ↑")
        published, quick, slow = group(comparison, 0, "DAEDL").lines
        assert published.label == "published"
        assert published.cells[1] == Cell("99.92 ± 0.0")
        assert quick.label == "ours, quick protocol, 2 seeds"
        assert quick.cells[0] == Cell("98.50 ± 0.71", "▼", "−1.40")
        assert quick.cells[1] == Cell("99.93 ± 0.01", "=", "+0.01")
        assert quick.cells[2] == Cell("not run")
        assert slow.label == "ours, paper protocol, 1 seed"
        assert slow.cells[:2] == (Cell("–"), Cell("97.00", "▼", "−2.92"))

    def test_seeds_are_told_with_each_figure_where_they_differ(self):
        made = [*ood("daedl", [0.99, 0.98]), *ood("daedl", [0.99], score="aleatoric")]
        line = group(compare(paper.table("ood-aupr"), found(*made)), 0, "DAEDL").lines[1]
        assert line.label == "ours, quick protocol"
        assert [cell.text for cell in line.cells[:2]] == ["99.00 (1)", "98.50 ± 0.71 (2)"]

    def test_what_was_not_run_has_no_cells(self):
        comparison = compare(paper.table("ood-aupr"), found(*ood("daedl", [0.99])))
        assert [line.cells == () for line in group(comparison, 0, "I-EDL").lines] == [False, True]
        assert all(each.lines[1].cells == () for each in comparison.blocks[1].groups)

    def test_methods_that_the_paper_lacks_come_last(self):
        made = [*ood("softmax", [0.9], score="aleatoric"), *ood("daedl-loo", [0.9])]
        block = compare(paper.table("ood-aupr"), found(*made)).blocks[0]
        assert [each.method for each in block.groups[-2:]] == ["Softmax", "DAEDL-LOO"]
        assert [each.in_paper for each in block.groups[-3:]] == [True, False, False]
        assert block.groups[-2].lines[0].cells[1] == Cell("–")  # it has no epistemic score
        ablation = compare(paper.table("mnist-ablation"), found(*made)).blocks[0]
        assert all(each.in_paper for each in ablation.groups)

    def test_an_ablations_row_is_the_method_that_it_names(self):
        comparison = compare(paper.table("mnist-ablation"), found(*ood("daedl", [0.9992])))
        assert group(comparison, 0, "Exp + DE + SN").lines[1].cells[1] == Cell(
            "99.92", "=", "+0.00"
        )

    def test_columns_of_the_test_set_and_of_severities(self):
        made = [
            row(
                "daedl", "cifar10", *what, value, protocol="cifar10-paper", experiment="cifar10-ood"
            )
            for what, value in (
                (("classification", "labels", "accuracy"), 0.90),
                (("classification", "probs", "brier"), 0.12),
            )
        ]
        made.append(
            row(
                "daedl",
                "cifar10-c/3",
                "shift",
                "aleatoric",
                "aupr",
                0.6753,
                protocol="cifar10-paper",
                experiment="cifar10-shift",
            )
        )
        line = group(compare(paper.table("cifar10-calibration"), found(*made)), 0, "DAEDL").lines[1]
        assert line.cells[0] == Cell("90.00", "▼", "−1.11")
        assert line.cells[2] == Cell("12.00", "▲", "−2.27")
        line = group(compare(paper.table("shift-aupr"), found(*made)), 1, "DAEDL").lines[1]
        assert [cell.text for cell in line.cells] == ["not run"] * 2 + ["67.53"] + ["not run"] * 2

    def test_tally(self):
        made = [*ood("daedl", [0.9992]), *ood("edl", [0.99])]
        tallies = {each.protocol: each for each in tally(paper.tables().values(), found(*made))}
        quick = tallies.pop("mnist-quick")
        # DAEDL's in the OOD table and the ablation, and the same for EDL.
        assert (quick.measured, quick.equal, quick.better, quick.worse) == (4, 4, 0, 0)
        assert quick.published == 76
        # What was not run has a line too.
        assert [each.measured for each in tallies.values()] == [0] * len(tallies)


class TestMissing:
    def gaps(self, *made):
        return missing.gaps(paper.tables().values(), found(*made))

    def test_every_method_without_rows_is_listed_with_its_command(self):
        gaps = self.gaps(*ood("daedl", [0.9]), *ood("daedl", [0.9], data="fashion-mnist"))
        title = "AUPR scores of OOD detection, MNIST"
        of_table = [each for each in gaps if (each.table, each.protocol) == (title, "quick")]
        others, edl = of_table
        assert others.methods == ("Dropout", "KL-PN", "RKL-PN", "PostNet", "I-EDL")
        assert others.command == ""
        assert edl.methods == ("EDL",)
        expected = "daedl bench run mnist-ood --protocol quick --methods edl --seeds 0-4"
        assert edl.command == expected

    def test_experiments_fit_their_tables(self):
        commands = {each.table: each.command for each in self.gaps() if "EDL" in each.methods}
        run = "daedl bench run"
        title = "Image classification and confidence calibration on CIFAR-10"
        assert commands[title].startswith(f"{run} cifar10-calibration --protocol paper")
        title = "AUPR scores of distribution shift detection by aleatoric uncertainty, CIFAR-10"
        assert commands[title].startswith(f"{run} cifar10-shift --protocol paper")
        assert commands["Distribution shift detection on MNIST-C"].startswith(f"{run} mnist-shift")

    def test_data_sets_that_lack_are_named(self):
        gaps = [each for each in self.gaps(*ood("daedl", [0.9])) if each.part]
        assert {(each.methods, each.part) for each in gaps} == {
            (("DAEDL",), "Fashion-MNIST"),
            (("Exp + DE + SN",), "Fashion-MNIST"),
        }


class TestFurther:
    def test_everything_else_is_shown(self):
        made = [
            *ood("daedl", [0.10, 0.12], metric="fpr95"),
            *ood("daedl", [0.95, 0.97], score="density", metric="auroc"),
            *(
                row("daedl", "mnist", *what, value)
                for what, value in (
                    (("classification", "probs", "nll"), 0.0312),
                    (("misclassification", "aleatoric", "aurc"), 0.00052),
                    (("cost", "training", "seconds"), 1234.5),
                    (("cost", "training", "epochs"), 31),
                )
            ),
            row("daedl", "mnist-c", "shift", "aleatoric", "aupr", 0.9, experiment="mnist-shift"),
            row(
                "daedl", "mnist-c/fog", "shift", "aleatoric", "aupr", 0.8, experiment="mnist-shift"
            ),
        ]
        classification, detection, cost = further.sheets("mnist-quick", found(*made))
        ((label, cells),) = classification.sections[0].lines
        assert label == "DAEDL (1)"
        assert (cells[2], cells[7]) == ("0.0312", "0.52")
        assert [section.heading for section in detection.sections] == ["KMNIST", "MNIST-C"]
        ((label, cells),) = detection.sections[0].lines
        assert label == "DAEDL (2)"
        shown = dict(zip(detection.columns, cells, strict=True))
        assert shown["FPR95 ↓", "epistemic"] == "11.00 ± 1.41"
        assert shown["AUROC ↑", "density"] == "96.00 ± 1.41"
        assert shown["AUPR ↑", "aleatoric"] == "–"
        assert cost.sections[0].lines == (("DAEDL (1)", ("1,234", "31.0", "–")),)

    def test_two_moons(self):
        assert further.moons(found()) is None
        sheet = further.moons(found(*moons_rows()))
        assert sheet.columns == (("", "test"), ("", "cluster"), ("", "far"))
        assert sheet.sections[0].lines[1] == (
            "DAEDL (2)",
            ("0.105 ± 0.007", "0.985 ± 0.007", "0.975 ± 0.007"),
        )


def moons_rows():
    means = {"softmax": (0.01, 0.02, 0.03), "daedl": (0.10, 0.98, 0.97)}
    return [
        row(
            method,
            data,
            "uncertainty",
            "variance",
            "mean",
            value + 0.01 * seed,
            seed,
            experiment="two-moons",
            protocol="",
        )
        for seed in range(2)
        for method, values in means.items()
        for data, value in zip(("test", "cluster", "far"), values, strict=True)
    ]


def test_what_was_run_is_told_in_words():
    made = [
        *ood("daedl-loo", [0.9, 0.8, 0.7]),
        *ood("edl", [0.9], commit="def5678", threads=2),
    ]
    (run,) = protocols.runs(found(*made))
    assert run.title == "A quick one."
    for words in (
        "ConvNet (in_channels = 1, num_classes = 10)",
        "48,000 images for training and 12,000 for validation",
        "at most 4 epochs; batches of 64; learning rate 0.003; one-cycle schedule of it",
    ):
        assert words in run.settings
    assert run.methods == (
        ("EDL", "edl, learning rate = 0.001", "0"),
        ("DAEDL-LOO", "daedl, leave_one_out = True", "0–2"),
    )
    assert (run.commits, run.threads, run.made) == ("abc1234, def5678", "1, 2", "")


def test_corruptions_that_were_made_here_are_told():
    figure = row(
        "daedl",
        "mnist-c/fog",
        "shift",
        "aleatoric",
        "aupr",
        0.8,
        experiment="mnist-shift",
        made=True,
    )
    content = page.gather(found(figure), [], [])
    assert content.runs[0].made == "MNIST-C"
    for form in (page.html(content), page.markdown(content)):
        assert "Corruptions of MNIST-C were" in form
    assert "Corruptions of" not in page.html(page.gather(found(*ood("daedl", [0.9])), [], []))


class Page(HTMLParser):
    """What a page refers to, and the names of its sections."""

    def __init__(self):
        super().__init__()
        self.addresses, self.links, self.sections, self.tags = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster", "action"):
                self.addresses.append(value)
            if name == "href":
                self.links.append(value)
            if name == "id":
                self.sections.append(value)


@pytest.fixture(scope="module")
def content():
    made = [
        *ood("daedl", [0.9992, 0.9994]),
        *ood("softmax", [0.9], score="aleatoric"),
        *moons_rows(),
    ]
    return page.gather(found(*made), [], [])


def test_the_page_needs_no_other_file(content):
    html = page.html(content)
    shown = Page()
    shown.feed(html)
    assert not re.search(r"https?://|@import|url\(|file:", html)
    assert not shown.tags & {"script", "link", "iframe", "object", "img"}
    assert {link.removeprefix("#") for link in shown.links} == set(shown.sections)
    assert set(paper.tables()) < set(shown.sections)


def test_the_page_says_everything(content):
    html = re.sub(r"\s+", " ", page.html(content))
    for words in (
        '99.93 ± 0.01<small class="equal">= +0.01</small>',
        "ours, quick protocol, 2 seeds",
        "99.92 ± 0.0",
        "Softmax <em>not in the paper’s table</em>",
        "not run",
        "daedl bench run mnist-ood --protocol quick --methods edl --seeds 0-4",
        "Exp + DE + SN and DAEDL",
        "DAEDL is uncertain far from the data (at least 0.9): yes",
        "The density score of one image then multiplies the logits of another",
        "0.985 ± 0.007",
    ):
        assert words in html


def test_tables_in_markdown_are_whole(content):
    form = page.markdown(content)
    for words in ("99.93 ± 0.01 = +0.01", "**DAEDL** | published", "| not run |", "## Not run"):
        assert words in form
    tables = re.findall(r"(?:^\|.*\n)+", form, re.MULTILINE)
    assert len(tables) >= len(paper.tables()) + 5
    for table in tables:
        lines = table.splitlines()
        assert re.fullmatch(r"\|(-+:?\|)+", lines[1])
        assert len({line.count("|") for line in lines}) == 1
        before = form[: form.index(table)]
        assert before.endswith("\n\n")


def test_without_rows_everything_is_not_run():
    content = page.gather(found(), [], [])
    for form in (page.html(content), page.markdown(content)):
        assert "Nothing was run yet" in form
        assert "▲ +" not in form
        assert "99.90 ± 0.0" in form


def test_averages_over_corruptions_are_told_from_single_ones():
    assert further.is_average("kmnist")
    assert further.is_average("mnist-c")
    assert all(map(further.is_average, corrupted_sets("cifar10-c")))
    assert not further.is_average("mnist-c/fog")
    assert not further.is_average("cifar10-c/fog/3")


def test_findings_keep_their_code_and_stay_text():
    table = "| | one |\n|---|---|\n| a | 1 < 2 |"
    findings = f"### Of `x`\n\nRun `a < b` & see <b>.\n\n<!-- rows: x -->\n\n{table}"
    content = page.gather(found(), [], [], findings)
    html = page.html(content)
    assert "rows: x" not in html
    assert "rows: x" not in page.markdown(content)
    assert "<h3>Of <code>x</code></h3>" in html
    assert "<p>Run <code>a &lt; b</code> &amp; see &lt;b&gt;.</p>" in html
    assert '<tr><th scope="col"></th><th scope="col">one</th></tr>' in html
    assert "<tr><td>a</td><td>1 &lt; 2</td></tr>" in html
