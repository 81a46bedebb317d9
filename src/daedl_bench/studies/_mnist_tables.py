"""Tables of MNIST in the documentation, from rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pandas import DataFrame

from daedl_bench import names
from daedl_bench.names import DASH, markdown
from daedl_bench.studies._tables import (
    BOTH,
    Question,
    Source,
    by_name,
    by_question,
    by_source,
    detection,
    every_source,
    known,
    number_of_seeds,
    with_seeds,
)
from daedl_bench.studies.mnist_rates import EXPERIMENT, RATES
from daedl_bench.summary import Results

QUICK, BRIEF, PAPER = "mnist-quick", "mnist-brief", "mnist-paper"
ONE_CYCLE = "one cycle"  # first words of the name of a candidate for `quick`
KNOWN = known("mnist")
KMNIST, FASHION, MNIST_C = DETECTION = tuple(map(detection, ("kmnist", "fashion-mnist", "mnist-c")))
COMPARED = dict(
    zip(
        ("accuracy", "ECE", "KMNIST", "Fashion-MNIST", "MNIST-C"),
        (KNOWN.accuracy, KNOWN.ece, *DETECTION),
        strict=True,
    )
)


def protocols(results: Results) -> str:
    """DAEDL under the paper's protocol and the quick one, compared with the paper's figures."""
    questions = (
        *(KNOWN.accuracy, KNOWN.brier, KNOWN.misclassification),
        *(KMNIST, detection("kmnist", "auroc"), FASHION, detection("fashion-mnist", "auroc")),
        MNIST_C,
    )
    return _beside_the_paper(results, questions, (QUICK, "daedl-loo"))


def summary(results: Results) -> str:
    """DAEDL, the paper's figures and softmax; for the README."""
    return _beside_the_paper(results, (KNOWN.accuracy, *DETECTION), (QUICK, "softmax"))


def _beside_the_paper(
    results: Results, questions: Sequence[Question], other: tuple[str, str]
) -> str:
    """DAEDL under both protocols and one more (protocol, method), behind the paper's figures."""
    sources = {
        f"{names.method(method)}, {protocol.removeprefix('mnist-')}": Source(protocol, method)
        for protocol, method in ((PAPER, "daedl"), (QUICK, "daedl"), other)
    }
    return by_question(results, questions, with_seeds(results, sources), published="mnist")


def ablation(results: Results) -> str:
    """The parts of DAEDL, and softmax, under the quick protocol."""
    labels = ("softmax", "edl", "exp", "exp+de", "exp+sn", "daedl")
    sources = {names.method(each): Source(QUICK, each) for each in labels}
    return by_question(results, COMPARED.values(), sources)


def every_method(results: Results) -> str:
    """Figures and costs of each method under the brief protocol."""
    costs = {
        score: Question("", "cost", "cost", "relative", (score,), scale=1)
        for score in ("step", "prediction")
    }
    return every_source(results, "mnist-ood", BRIEF, COMPARED | costs)


def wrapped(results: Results) -> str:
    """Effect of the density on a trained softmax network."""
    sources = {
        "softmax": Source(BRIEF, "softmax"),
        "softmax with density, `retrofit`": Source(BRIEF, "retrofit"),
        "DAEDL": Source(BRIEF, "daedl"),
    }
    titled = {
        f"{title} ({names.seeds(number_of_seeds(results, source))})": source
        for title, source in sources.items()
    }
    heads = {"ECE": "calibration error"}
    return by_source(results, titled, {heads.get(key, key): each for key, each in COMPARED.items()})


def prevalence(results: Results) -> str:
    """AUPR with one in-distribution image in two and in eight, and figures printed for the latter."""
    lines = []
    for label in ("postnet", "kl-pn", "dropout", "rkl-pn"):
        source, cells = Source(BRIEF, label), []
        study = source._replace(study="prevalence")
        for each in (KMNIST, FASHION):
            rare = each._replace(metric="aupr, one in eight")
            cells += [each.text(results, source), rare.text(results, study)]
            cells.append(each.published(label, "mnist"))
        seeds = number_of_seeds(results, source)
        count = max(s.n for s in rare.ask(results, study) if s)
        part = "" if count == seeds else f", {count} of them at 1 to 7"
        lines.append([f"{names.method(label)} ({names.seeds(seeds)}{part})", *cells])
    first, *others = "ours, 1 to 1", "ours, 1 to 7", "printed"
    heads = [f"KMNIST: {first}", *others, f"Fashion-MNIST: {first}", *others]
    return markdown(["", *heads], lines)


def quick_and_paper(results: Results) -> str:
    """DAEDL under all protocols, and under candidates with lower rates than `quick`."""
    recipe = results.catalogue.protocols[QUICK].training
    lower = {rate: candidate({**recipe, "learning_rate": rate}) for rate in (2e-3, 1e-3)}
    sources = {
        "brief": Source(BRIEF, "daedl"),
        **{f"up to {rate:g}": Source(name, "daedl", EXPERIMENT) for rate, name in lower.items()},
        "quick": Source(QUICK, "daedl"),
        "paper": Source(PAPER, "daedl"),
    }
    noise, auroc = detection("noise-grey", "auroc"), detection("mnist-c", "auroc")
    questions = (KNOWN.accuracy, KMNIST, FASHION, noise, MNIST_C, auroc)
    return by_question(results, questions, with_seeds(results, sources))


def candidates(results: Results) -> str:
    """The candidates for `quick` by figures of validation images, the lowest loss first."""
    table = _validation(results, ONE_CYCLE).sort_values("validation", kind="stable")
    lines = [([_recipe(key[0], results)], key) for key in table.index]
    return _validated(lines, ["candidate"], table)


def rates(results: Results) -> str:
    """Learning rates that were tried under `brief`, by figures of validation images."""
    table = _validation(results, "brief, rate")
    lines = [
        ([names.method(label), f"{rate:g}"], key)
        for label in results.catalogue.methods
        for rate in RATES
        if (key := (f"brief, rate {rate:g}", label)) in table.index
    ]
    return _validated(lines, ["", "rate"], table)


def unknown_digits(results: Results) -> str:
    """AUROC of candidates for `quick` against digits left out of training, the highest mean first."""
    rows = results.every_row
    rows = rows[rows["data"].str.startswith("digits ") & (rows["metric"] == "auroc")]
    rows = rows[rows["score"].isin(BOTH)]
    # Datasets that every candidate was measured on.
    table = 100 * rows.pivot_table("value", "protocol", ["data", "score"]).dropna(axis="columns")
    means = table.mean(axis="columns").sort_values(ascending=False)
    sets = [str(each) for each in table.columns.unique("data")]
    cells = table.map("{:.2f}".format).to_dict()
    lines = [
        [
            _recipe(str(name), results),
            *(" / ".join(cells[each, score][name] for score in BOTH) for each in sets),
            f"{mean:.2f}",
        ]
        for name, mean in means.items()
    ]
    return markdown(["candidate", *sets, "mean"], lines)


def _validation(results: Results, protocol: str) -> DataFrame:
    """Means of figures of validation images under protocols that begin with `protocol`, and seeds."""
    rows = results.every_row
    rows = rows[(rows["data"] == "validation") & rows["protocol"].str.startswith(protocol)]
    table = rows.pivot_table("value", ["protocol", "method"], "metric")
    return table.assign(seeds=rows.groupby(["protocol", "method"])["seed"].nunique())


def _validated(
    lines: Iterable[tuple[list[str], tuple[str, str]]], heads: Sequence[str], table: DataFrame
) -> str:
    """One line per pair of first cells and key in `table`; metrics that are missing there are omitted."""
    forms = {
        "validation": ("validation loss", "{:.5f}"),
        "accuracy": ("accuracy", "{:.2%}"),
        "brier": ("Brier", "{:.4f}"),
        "nll": ("NLL", "{:.4f}"),
        "seconds": ("seconds", "{:.0f}"),
        "seeds": ("seeds", "{:.0f}"),
    }
    shown = {
        head: table[name].map(form.format, na_action="ignore").fillna(DASH)
        for name, (head, form) in forms.items()
        if name in table
    }
    cells = [[*line, *(column[key] for column in shown.values())] for line, key in lines]
    return markdown([*heads, *shown], cells)


def candidate(training: Mapping[str, Any]) -> str:
    """The name of a candidate for `quick`, which states its settings."""
    text = ONE_CYCLE + ", {max_epochs} epochs, batch {batch_size}, rate {learning_rate:g}"
    return text.format_map(training)


def _recipe(name: str, results: Results) -> str:
    """The name of a candidate, after the name of the protocol that it became."""
    training = {each: results.catalogue.protocols[each].training for each in (QUICK, BRIEF)}
    became = (each for each, settings in training.items() if candidate(settings) == name)
    return next((f"`{each.removeprefix('mnist-')}`: " for each in became), "") + name


TABLES = by_name(
    *(summary, protocols, ablation, every_method, wrapped, prevalence),
    *(quick_and_paper, candidates, unknown_digits, rates),
)
