"""CLINC150: 150 intents and out-of-scope queries, with a frozen sentence encoder and with fine-tuned layers.

    python -m daedl_bench study intents measure
    python -m daedl_bench study intents measure --protocol logistic --seeds 0
    python -m daedl_bench study intents measure --protocol finetuned
    python -m daedl_bench study intents heads

Trained on the 15,000 training queries; the 3,000 validation queries select the epoch and the temperature. The
out-of-scope queries of training and validation are not used at all. `heads` compares settings on groups of
intents that are left out of training, whose validation queries are the unknown ones; it sees no test query.
Rows are appended to benchmarks/results/intents.jsonl.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from pandas import DataFrame
from sklearn.cluster import AgglomerativeClustering
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from daedl import Classifier, evaluate, fit, fit_frozen
from daedl.density import DensityWarning
from daedl.evaluate import Measured
from daedl.names import look_up
from daedl.training import embedding_recipe, finetuning
from daedl_bench import datasets, options, results
from daedl_bench.datasets import clinc
from daedl_bench.names import markdown
from daedl_bench.studies.panel.case import Sets
from daedl_bench.studies.panel.measure import Judge
from daedl_bench.summary import Results, cell

EXPERIMENT, PATH = "intents", options.RESULTS / "intents.jsonl"
FROZEN, FINETUNED, LOGISTIC = "frozen", "finetuned", "logistic"
UNKNOWN = "out of scope"
# Methods by the one that trains their network.
TRAININGS: Mapping[str, Sequence[str]] = {
    "daedl": ("daedl",),
    "softmax": ("softmax", "temperature", "energy", "knn", "mahalanobis", "retrofit"),
}
# Groups of similar intents, of which about a quarter is left out of training to compare settings (chosen).
GROUPS, LEFT_OUT = 10, 40
# Heads by their hidden layers, and densities for the one of 512, with settings of DAEDL.
HEADS: Mapping[str, tuple[int, ...]] = {"linear": (), "256": (256,), "512": (512,), "1024": (1024,)}
DENSITIES: Mapping[str, Mapping[str, Any]] = {
    "512, diagonal": {"covariance": "diagonal"},
    "512, normalised features": {"normalize_features": True},
    "512, smooth-quantile": {"normalizer": "smooth-quantile"},
    "512, minmax": {"normalizer": "minmax"},
}
STRENGTHS = (1.0, 10.0, 100.0)  # inverse penalties of logistic regression
Samples = tuple[Tensor, Tensor]
app = typer.Typer(no_args_is_help=True, help=__doc__)


class Line(NamedTuple):
    """A line of the table: a method, and the score that detects out-of-scope queries."""

    title: str
    method: str
    score: str = "epistemic"


LINES = (
    Line("Softmax, largest probability", "softmax", "aleatoric"),
    Line("Temperature scaling", "temperature", "aleatoric"),
    Line("Energy", "energy"),
    Line("kNN distance", "knn"),
    Line("Mahalanobis", "mahalanobis"),
    Line("Softmax + density, largest probability", "retrofit", "aleatoric"),
    Line("Softmax + density, α₀", "retrofit"),
    Line("DAEDL, density alone", "daedl", "density"),
    Line("DAEDL", "daedl"),
)


def head(train: Samples, val: Samples, seed: int, **settings: Any) -> Classifier:
    """A head on embeddings, trained with the library's recipe."""
    recipe = embedding_recipe()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Classifier.for_embeddings(train[0].shape[1], int(train[1].max()) + 1, **settings)
    fit(
        model,
        train,
        val,
        batch_size=recipe.batch_size,
        seed=seed,
        progress=False,
        **recipe.options(),
    )
    return model


def untrained(
    method: str, data: Path | None, hidden: Sequence[int] | None
) -> tuple[Classifier, Sets]:
    """A head on embeddings of the frozen encoder, and the embeddings."""
    parts = {
        name: (torch.tensor(vectors), torch.tensor(intents))
        for name, (vectors, intents) in clinc.embeddings(data).items()
    }
    inputs, targets = parts["train"]
    classes = int(targets.max()) + 1
    model = Classifier.for_embeddings(inputs.shape[1], classes, hidden=hidden, method=method)
    return model, sets_of(parts)


def frozen(method: str, seed: int, data: Path | None) -> tuple[Classifier, Sets]:
    """A head on embeddings of the frozen encoder."""
    _, sets = untrained(method, data, None)
    return head(sets.train, sets.calibration, seed, method=method), sets


def sets_of(parts: Mapping[str, Any]) -> Sets:
    """The splits by their purpose; queries out of scope have class 0, which nothing reads."""
    inputs, intents = parts["oos_test"]
    unknown = {UNKNOWN: (inputs, torch.zeros_like(intents))}
    return Sets(parts["train"], parts["val"], parts["test"], unknown, {})


def finetuned(method: str, seed: int, data: Path | None) -> tuple[Classifier, Sets]:
    """The same head, then trained together with the last layers of the encoder."""
    parts = clinc.texts(data)
    recipe = embedding_recipe()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classes = int(parts["train"][1].max()) + 1
        model = Classifier.from_backbone(clinc.ENCODER, classes, method=method)
    given: dict[str, Any] = {"batch_size": recipe.batch_size, "seed": seed, "progress": False}
    cache, train, val = datasets.data_root(data) / "cache", parts["train"], parts["val"]
    fit_frozen(model, train, val, cache=cache, **given, **recipe.options())
    network: Any = model.network
    network.freeze(network.finetuned)
    fit(model, train, val, **given, **finetuning(recipe, network).options())
    return model, sets_of(parts)


def logistic(method: str, seed: int, data: Path | None) -> tuple[Classifier, Sets]:
    """Logistic regression on embeddings; its penalty is selected by validation accuracy."""
    del seed  # it is deterministic
    model, sets = untrained(method, data, ())
    found = {
        strength: LogisticRegression(C=strength, max_iter=1000).fit(*map(np.asarray, sets.train))
        for strength in STRENGTHS
    }
    best = max(found.values(), key=lambda each: each.score(*map(np.asarray, sets.calibration)))
    layer: Any = model.network.classifier.logits
    with torch.no_grad():
        # The head multiplies unit vectors by the root of their length.
        layer.weight.copy_(torch.tensor(best.coef_) / layer.in_features**0.5)
        layer.bias.copy_(torch.tensor(best.intercept_))
    return model.eval(), sets


def figures(judge: Judge, method: str) -> Iterator[tuple[str, Measured]]:
    """Accuracy, calibration and detection, and the seconds of the fit."""
    model, seconds = judge.trained, 0.0
    if method != model.method.name:
        model, seconds = judge.fitted(method)
    known = model.predict_outputs(judge.test[0])
    for each in evaluate.classification(known, judge.test[1]):
        yield "test", each
    (unknown,) = judge.unknown.values()
    for each in evaluate.ood_detection(known, model.predict_outputs(unknown)):
        yield UNKNOWN, each
    yield "", Measured("cost", "fit", "seconds", seconds)


PROTOCOLS: Mapping[str, Callable[[str, int, Path | None], tuple[Classifier, Sets]]] = {
    FROZEN: frozen,
    LOGISTIC: logistic,
    FINETUNED: finetuned,
}


@app.command()
def measure(
    protocol: Annotated[str, typer.Option(help="frozen, logistic or finetuned.")] = FROZEN,
    seeds: options.Seeds = "0-4",
    trainings: Annotated[
        str, typer.Option("--methods", help="daedl, softmax or both.")
    ] = "daedl,softmax",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    data: options.DataRoot = None,
) -> None:
    """Append the missing figures of every method and seed.

    "seconds" are those of the processor, "elapsed" those of the clock, without encoding the texts.
    """
    torch.set_num_threads(threads)
    train = look_up(PROTOCOLS, protocol, "protocol")
    done = {(row.protocol, row.seed, row.method) for row in results.load(PATH)}
    encoding = clinc.seconds_to_encode(data)
    for seed in options.seed_list(seeds):
        for first in options.names(trainings):
            missing = [each for each in TRAININGS[first] if (protocol, seed, each) not in done]
            if not missing or (protocol, first) == (LOGISTIC, "daedl"):
                continue
            started, clock = time.process_time(), time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DensityWarning)
                model, sets = train(first, seed, data)
            seconds = time.process_time() - started + encoding
            elapsed = time.perf_counter() - clock
            judge = Judge(model, sets)
            for method in missing:
                cost = [
                    ("", Measured("cost", "training", "seconds", seconds)),
                    ("", Measured("cost", "training", "elapsed", elapsed)),
                ]
                named = {"experiment": EXPERIMENT, "method": method, "protocol": protocol}
                measured = [*figures(judge, method), *cost]
                results.record(PATH, measured, seed=seed, seconds=seconds, **named)
            typer.echo(f"{protocol}, seed {seed}, {first}: {seconds:.0f} s")


@app.command()
def heads(seeds: options.Seeds = "0-1", data: options.DataRoot = None) -> None:
    """Append the figures of settings on left-out intents, which the seed selects."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DensityWarning)
    for seed in options.seed_list(seeds):
        train, val, unknown = leave_out(seed, data)
        for name, hidden in HEADS.items():
            model = head(train, val, seed, hidden=hidden)
            _append_head(name, seed, model, val, unknown)
            for title, settings in DENSITIES.items() if name == "512" else ():
                other = Classifier(model.network, "daedl", preprocess=None, **settings).eval()
                _append_head(title, seed, other.fit_post_hoc(train, val), val, unknown)


def leave_out(seed: int, data: Path | None) -> tuple[Samples, Samples, Tensor]:
    """Training and validation embeddings of most intents, and the validation embeddings of the others.

    The others are groups of similar intents: single intents would be closer to known ones than queries that
    are out of scope.
    """
    found = clinc.embeddings(data)
    vectors, labels = found["train"]
    classes = int(labels.max()) + 1
    means = np.stack([vectors[labels == each].mean(0) for each in range(classes)])
    groups = AgglomerativeClustering(GROUPS).fit_predict(means)
    chosen: list[int] = []
    for group in np.random.default_rng(seed).permutation(GROUPS):
        members = np.flatnonzero(groups == group)
        if len(chosen) + len(members) <= LEFT_OUT:
            chosen += members.tolist()
    number = torch.full((classes,), -1)
    kept = [each for each in range(classes) if each not in chosen]
    number[kept] = torch.arange(len(kept))

    def part(name: str, known: bool) -> Samples:
        inputs, targets = torch.tensor(found[name][0]), number[torch.tensor(found[name][1])]
        rows = (targets >= 0) == known
        return inputs[rows], targets[rows]

    return part("train", True), part("val", True), part("val", False)[0]


def _append_head(name: str, seed: int, model: Classifier, val: Samples, unknown: Tensor) -> None:
    known = model.predict(val[0])
    measured = [
        *evaluate.classification(known, val[1]),
        *evaluate.ood_detection(known, model.predict(unknown)),
    ]
    circumstances = {"experiment": f"{EXPERIMENT}-heads", "method": name, "seed": seed}
    results.append(PATH, results.rows(measured, data="left out", protocol=FROZEN, **circumstances))
    typer.echo(f"seed {seed}, {name}")


def table(found: Results, protocol: str) -> str:
    """One line per method: accuracy, calibration, detection and seconds."""
    rows = found.every_row
    rows = rows[(rows["experiment"] == EXPERIMENT) & (rows["protocol"] == protocol)]
    heads = ["accuracy", "ECE", "AUROC", "FPR95", "AUPR", "seconds"]
    lines = [
        [each.title, *_cells(rows, each)] for each in LINES if (rows["method"] == each.method).any()
    ]
    return markdown(["", "seeds", *heads], lines, left=1)


def head_table(found: Results) -> str:
    """One line per setting, on left-out intents."""
    rows = found.every_row
    rows = rows[rows["experiment"] == f"{EXPERIMENT}-heads"]
    lines = [
        [name, *_cells(rows, Line(name, name))[:-1]]
        for name in (*HEADS, *DENSITIES)
        if (rows["method"] == name).any()
    ]
    return markdown(
        ["hidden layer", "seeds", "accuracy", "ECE", "AUROC", "FPR95", "AUPR"], lines, left=1
    )


def _cells(rows: DataFrame, line: Line) -> list[str]:
    rows = rows[rows["method"] == line.method]
    return [
        str(rows["seed"].nunique()),
        cell(rows, task="classification", metric="accuracy"),
        cell(rows, task="calibration", metric="ece"),
        *(cell(rows, task="ood", score=line.score, metric=m) for m in ("auroc", "fpr95", "aupr")),
        cell(rows, 1, 0, task="cost", score="training", metric="seconds"),
    ]


TABLES = {
    "intents-frozen": lambda found: table(found, FROZEN),
    "intents-logistic": lambda found: table(found, LOGISTIC),
    "intents-finetuned": lambda found: table(found, FINETUNED),
    "intents-heads": head_table,
}
