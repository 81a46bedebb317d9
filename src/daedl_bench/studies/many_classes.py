"""The density of many classes: one pass over features of ImageNet's shape, and what class parts detect.

First 1.28 million synthetic features of 1,000 classes and 2,048 columns, generated chunk by chunk, pass
through a `DensityStream`: its time relative to the features' Gram matrix, the memory of the process, the
size of the model file, and the time of a ResNet-50 with and without the density. Then smaller problems with
several seeds: held-out log density, and AUROC against clusters that were not in training, per covariance.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, get_args

import torch
import typer
from torch import Tensor, nn

from daedl.checks import import_optional
from daedl.classifier import Classifier
from daedl.density import DensityScorer, DensityStream, GaussianDensity, fit_gaussians
from daedl.density.fitting import Covariance
from daedl.evaluate import Measured
from daedl.metrics import auroc
from daedl.networks import FeatureHead
from daedl_bench import options, results
from daedl_bench.memory import memory
from daedl_bench.names import DASH, markdown
from daedl_bench.results import Row
from daedl_bench.studies._clusters import OWN, Clusters
from daedl_bench.studies._machine import Limited, best_times, compared, conclude
from daedl_bench.summary import Results, cell

NAME, FILE_NAME = "many-classes", "many_classes"
SEED = 1  # of the large problem
CLASSES, WIDTH, SAMPLES, CHUNK = 1000, 2048, 1_280_000, 8192
# Classes, features and samples per class of the problem that is repeated with several seeds.
SMALL = (300, 600, 200)
HELD_OUT = 8192
# One Gram matrix per so many chunks is measured, in the dtype of the features and in float64.
EVERY = 12
# Predictions of a ResNet-50 on a batch of 32.
BATCH, ROUNDS = 32, 7
# Limits (targets of the design).
FIT, MEMORY, FILE, SCORING = 1.5, 1024.0, 60.0, 1.10
app = typer.Typer()


def seconds(run: Callable[[], object]) -> float:
    """Processor time of one call, which depends less on the machine's other load than elapsed time does."""
    started = time.process_time()
    run()
    return time.process_time() - started


def fit(samples: int) -> tuple[DensityStream, DensityScorer, list[Limited]]:
    """One pass over `samples` features, timed with Gram matrices."""
    clusters = Clusters.drawn(CLASSES, WIDTH, SEED)
    before, ours = memory("VmHWM"), []
    grams: dict[str, list[float]] = {"float32": [], "float64": []}
    totals = {name: torch.zeros(WIDTH, WIDTH, dtype=getattr(torch, name)) for name in grams}
    stream = DensityStream(CLASSES, "tied-low-rank")
    for number, (features, targets) in enumerate(clusters.chunks(samples, CHUNK)):
        ours.append(seconds(lambda x=features, y=targets: stream.add(x, y)))  # type: ignore[misc]
        if len(features) == CHUNK and number % EVERY < len(grams):
            name = list(grams)[number % EVERY]
            grams[name].append(seconds(lambda x=features, n=name: _gram(totals[n], x)))  # type: ignore[misc]
    scorers: list[DensityScorer] = []
    finish = seconds(lambda: scorers.append(stream.scorer()))
    used, total = memory("VmHWM"), sum(ours) + finish
    # Tied and class parts, the pilot and everything after the pass included.
    case, chunks = f"{samples:,} x {WIDTH}, {CLASSES:,} classes", samples / CHUNK
    rows = []
    for name, times in grams.items():
        limit, gram = (FIT if name == "float32" else None), sum(times) / len(times) * chunks
        rows.append(compared(f"fit / Gram matrix in {name}", case, total, gram, limit))
    rows += [
        Limited("seconds after the pass", case, "s", finish),
        Limited("working memory", case, "MiB", used - before, MEMORY),
        Limited("with Python, PyTorch and the generator", case, "MiB", used),
    ]
    return stream, scorers[0], rows


def _gram(total: Tensor, features: Tensor) -> None:
    rows = features.to(total.dtype)
    total.addmm_(rows.T, rows)


def model_file(scorer: DensityScorer) -> list[Limited]:
    """The size of a model file with a linear classifier on the features."""
    model = Classifier(FeatureHead(WIDTH, CLASSES), "retrofit", covariance="tied-low-rank")
    model.fitted = scorer
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.daedl"
        model.save(path)
        size = path.stat().st_size / 1e6
        loading = seconds(lambda: Classifier.load(path))
    tensors = sum(each.nbytes for each in scorer.state_dict().values()) / 1e6
    case = f"{CLASSES:,} classes, {WIDTH} features"
    return [
        Limited("model file with a linear head", case, "MB", size, FILE),
        Limited("of which the density", case, "MB", tensors),
        Limited("seconds to load it", case, "s", loading),
    ]


def scoring(scorer: DensityScorer) -> list[Limited]:
    """A ResNet-50 with random weights and the density against the network alone."""
    package = import_optional("transformers", "a ResNet-50", "'daedl[text]'")
    body, head = package.ResNetModel(package.ResNetConfig()).eval(), nn.Linear(WIDTH, CLASSES)
    images = torch.rand(BATCH, 3, 224, 224)
    precision = str(scorer.density.dtype).removeprefix("torch.")

    def network(pixels: Tensor) -> Tensor:
        pooled: Tensor = body(pixels).pooler_output
        return pooled.flatten(1)

    def alone() -> Tensor:
        logits: Tensor = head(network(images))
        return logits

    def with_density() -> Tensor:
        features = network(images)
        _, score = scorer(features)
        scaled: Tensor = score[:, None] * head(features)
        return scaled

    with torch.no_grad():
        features = network(images)
        work = {"alone": alone, "with": with_density, "density": lambda: scorer(features)}
        times = best_times(work, ROUNDS, time.process_time)
    case = f"ResNet-50, batch {BATCH}, {torch.get_num_threads()} thread, density in {precision}"
    return [
        compared("network and density / network", case, times["with"], times["alone"], SCORING),
        compared("density / network", case, times["density"], times["alone"]),
    ]


def quality(density: GaussianDensity, own: tuple[float, ...], seed: int) -> list[Measured]:
    """Held-out log density, and AUROC against as many clusters that were not in training."""
    classes, width = density.means.shape
    known, _ = Clusters.drawn(classes, width, seed, own).sample(HELD_OUT, 10_000)
    unknown, _ = Clusters.drawn(classes, width, seed + 1000, own).sample(HELD_OUT, 10_001)
    inside, outside = -density(known), -density(unknown)
    return [
        Measured("density", "density", "mean log density", -float(inside.mean())),
        Measured("ood", "density", "auroc", auroc(inside, outside)),
    ]


def row_of(method: str, data: str, seed: int, took: float, figures: list[Measured]) -> list[Row]:
    """The figures of one covariance."""
    return results.rows(figures, experiment=NAME, method=method, data=data, seed=seed, seconds=took)


def large_problem(stream: DensityStream) -> list[Row]:
    """Figures of the large problem, of both covariances that one pass determines."""
    statistics = stream.statistics["tied-low-rank"]
    rows = []
    for structure in ("tied", "tied-low-rank"):
        density = GaussianDensity.fit(statistics.reduced(structure))
        figures = quality(density, OWN, SEED)
        rows += row_of(structure, f"clusters, {CLASSES} x {WIDTH}", SEED, 0.0, figures)
    return rows


def small_problem(seed: int, own: tuple[float, ...], data: str) -> list[Row]:
    """Every covariance on one small problem, and whether "auto" selects it."""
    classes, width, per_class = SMALL
    features, targets = Clusters.drawn(classes, width, seed, own).sample(classes * per_class, seed)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    rows, selected = [], fit_gaussians(features[order], targets[order], classes, "auto").structure
    for covariance in get_args(Covariance):
        if covariance not in ("auto", "full", "low-rank", "block"):
            started = time.process_time()
            density = fit_gaussians(features[order], targets[order], classes, covariance)
            took = time.process_time() - started
            chosen = Measured("density", "density", "selected", float(covariance == selected))
            rows += row_of(covariance, data, seed, took, [*quality(density, own, seed), chosen])
    return rows


def table(found: Results) -> str:
    """One line per data and covariance: log density, AUROC, and how often "auto" selects it."""
    rows = found.every_row
    rows = rows[rows["experiment"] == NAME].drop_duplicates(
        ["data", "method", "metric", "seed"], keep="last"
    )
    lines = []
    for (data, method), own in rows.groupby(["data", "method"], sort=False):
        selected = own[own["metric"] == "selected"]["value"]
        lines.append(
            [
                str(data),
                str(method),
                str(own["seed"].nunique()),
                cell(own, 1, 1, metric="mean log density"),
                cell(own, metric="auroc"),
                f"{selected.sum():.0f} of {len(selected)}" if len(selected) else DASH,
            ]
        )
    head = ["", "covariance", "seeds", "held-out log density", "AUROC", "selected by `auto`"]
    return markdown(head, lines)


@app.command(help=__doc__)
def main(
    folder: options.ResultsFolder = options.RESULTS,
    seeds: Annotated[
        str, typer.Option(help="Of the small problems, as in 0-4; none with ''.")
    ] = "0-4",
    samples: Annotated[
        int, typer.Option(help="Samples of the large problem; 0 omits it.")
    ] = SAMPLES,
    predictions: Annotated[bool, typer.Option(help="Time predictions of a ResNet-50.")] = True,
    threads: int = 1,
) -> None:
    torch.set_num_threads(threads)
    limits: list[Limited] = []
    if samples:  # first, because the memory is the largest of the process
        stream, scorer, limits = fit(samples)
        limits += model_file(scorer)
        results.append(folder / f"{FILE_NAME}.jsonl", large_problem(stream))
    if predictions:
        limits += scoring(scorer if samples else fit(2 * CHUNK)[1])
    for seed in options.seed_list(seeds) if seeds else []:
        rows = small_problem(seed, OWN, "clusters with directions of their own")
        rows += small_problem(seed, (1e-6,), "clusters of one covariance")
        results.append(folder / f"{FILE_NAME}.jsonl", rows)
    if limits:
        conclude("many classes", limits, folder / f"{FILE_NAME}_limits.jsonl")
