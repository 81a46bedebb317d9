"""Speed and memory of the core, each figure side by side with its reference in one run.

    python benchmarks/speed.py [--threads 2] [--only memory] [--rows benchmarks/results/speed.jsonl]

Times are the best of several interleaved repetitions, so that a noisy machine disturbs both sides alike.
Ratios are compared with the limits of the project; a missed limit makes the exit status 1.
"""

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor
from torch.distributions import MultivariateNormal

import daedl
from daedl.cli.memory import keep_freed_memory
from daedl.data import ImageSet
from daedl.density import ClassStatistics, DensityScorer
from daedl.networks import VGG16, ConvNet, Network
from daedl.outputs import Outputs
from daedl_bench.report import summary
from daedl_bench.spec import Protocol, catalogue
from limits import Limited, conclude

RESULTS = Path(__file__).parent / "results" / "speed.jsonl"


@dataclass(frozen=True)
class SpeedRow(Limited):
    """A figure, with the seconds that it was computed from."""

    ours_seconds: float | None = None
    reference_seconds: float | None = None


def row(
    benchmark: str,
    case: str,
    unit: str,
    value: float,
    limit: float | None = None,
    *,
    at_least: bool = False,
    seconds: tuple[float | None, float | None] = (None, None),
) -> SpeedRow:
    """A figure, and the seconds of both sides."""
    figure = SpeedRow(benchmark, case, unit, value, limit, at_least)
    return replace(figure, ours_seconds=seconds[0], reference_seconds=seconds[1])


def best_of(
    ours: Callable[[], object], reference: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """Least seconds of both, run in turns after one run each to warm up."""
    times: list[list[float]] = [[], []]
    for repeat in range(repeats + 1):
        for side, run in enumerate((ours, reference)):
            started = time.perf_counter()
            run()
            if repeat:
                times[side].append(time.perf_counter() - started)
    return min(times[0]), min(times[1])


def fitted(network: Network) -> daedl.Classifier:
    """A classifier whose density is fitted to features of noise: speed doesn't depend on training."""
    classifier = daedl.Classifier(network).eval()
    images = torch.rand(3000, *network.input_shape)
    targets = torch.arange(3000) % network.num_classes
    batches = zip(torch.split(images, 250), torch.split(targets, 250), strict=True)
    return classifier.fit_post_hoc(batches)


def prediction(network: Network, limit: float) -> SpeedRow:
    """`predict` against the network's own forward pass, batch 256."""
    classifier = fitted(network)
    images = torch.rand(256, *network.input_shape)

    @torch.no_grad()
    def forward() -> Outputs:
        return classifier(images)  # type: ignore[no-any-return]

    # A VGG16 pass takes seconds: with 5 repeats two runs gave 0.99 and 1.10 (both are in the rows).
    repeats = 30 if isinstance(network, ConvNet) else 15
    seconds = best_of(lambda: classifier.predict(images), forward, repeats)
    case = f"{type(network).__name__}, batch 256, density in {_precision(classifier)}"
    return row("predict / forward", case, "times", seconds[0] / seconds[1], limit, seconds=seconds)


def _precision(classifier: daedl.Classifier) -> str:
    scorer = classifier.fitted
    assert isinstance(scorer, DensityScorer)
    return str(scorer.density.dtype).removeprefix("torch.")


def gaussian_features(classes: int, width: int, decay: float) -> tuple[Tensor, Tensor]:
    """Features (N, H) whose covariances have eigenvalues k^-decay in directions of their own a class.

    Trained networks' features have such spectra; decay 1.5 gives condition numbers near 1e4.
    """
    generator = torch.Generator().manual_seed(0)
    scales = torch.arange(1, width + 1, dtype=torch.float64).pow(-decay / 2)
    features = []
    for _ in range(classes):
        raw = torch.randn(width, width, generator=generator, dtype=torch.float64)
        rotation, _ = torch.linalg.qr(raw)
        rows = torch.randn(3 * width, width, generator=generator, dtype=torch.float64)
        center = torch.randn(width, generator=generator, dtype=torch.float64)
        features.append((rows * scales) @ rotation + center)
    targets = torch.arange(classes).repeat_interleave(3 * width)
    return torch.cat(features).float(), targets


def scoring(
    classes: int, width: int, batch: int, decay: float = 1.5, limit: float | None = 3.0
) -> list[SpeedRow]:
    """Density scoring against MultivariateNormal.log_prob in float64, on the same features.

    `limit` is None for features so ill-conditioned that the library takes float64: told, not judged.
    """
    features, targets = gaussian_features(classes, width, decay)
    density = DensityScorer.fit(features, targets, classes).density
    statistics = ClassStatistics.of(features, targets, classes)
    normals = MultivariateNormal(
        statistics.means, covariance_matrix=torch.stack(list(statistics.covariances()))
    )
    weights = (statistics.counts / statistics.counts.sum()).log()
    probe = features[torch.randperm(len(features))[:batch]]
    exact = probe.double()[:, None]

    def reference() -> Tensor:
        log_prob: Tensor = normals.log_prob(exact)  # type: ignore[no-untyped-call]
        return (log_prob + weights).logsumexp(-1)

    seconds = best_of(lambda: density(probe), reference, repeats=8)
    expected = reference()
    error = float(((density(probe) - expected) / expected).abs().max())
    precision = str(density.dtype).removeprefix("torch.")
    condition = float(density.condition.max())
    case = f"C {classes}, H {width}, B {batch}, {precision}, condition {condition:.0e}"
    name = "MultivariateNormal.log_prob / density"
    ratio = seconds[1] / seconds[0]
    return [
        row(name, case, "times as fast", ratio, limit, at_least=True, seconds=seconds),
        row("density, relative difference", case, "", error, 1e-5),
    ]


def training_step() -> SpeedRow:
    """An evidential step against a cross-entropy step, on the same spectrally normalised ConvNet."""
    network = daedl.spectral_normalize(ConvNet(1, 10)).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    images, targets = torch.rand(64, 1, 28, 28), torch.arange(64) % 10
    method = daedl.methods.DAEDL()

    def step(loss: Callable[[], Tensor]) -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    seconds = best_of(
        lambda: step(lambda: method.training_loss(network, images, targets, 0)),
        lambda: step(lambda: F.cross_entropy(network(images).logits, targets)),
        repeats=40,
    )
    ratio = seconds[0] / seconds[1]
    name = "evidential step / cross-entropy step"
    return row(name, "ConvNet, batch 64", "times", ratio, 1.10, seconds=seconds)


def random_images(count: int) -> ImageSet:
    """Noise in MNIST's shape, with labels."""
    images = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % 10, "random", "train")


def throughput(images: int = 3200) -> SpeedRow:
    """Images a second of `fit` against a bare loop with cross-entropy on batches that lie ready.

    Both train the same spectrally normalised ConvNet; `fit` makes its batches from uint8 images, and lays
    out the weights with the channels last, the loop leaves them as PyTorch makes them.
    """
    data = random_images(images)
    classifier = daedl.Classifier(ConvNet(1, 10))
    bare = daedl.spectral_normalize(ConvNet(1, 10)).train()
    optimizer = torch.optim.Adam(bare.parameters(), lr=1e-3)
    ready = list(data.batches(64))

    def one_epoch() -> float:
        batches = data.batches(64, shuffle=True)
        history = daedl.fit(classifier, batches, max_epochs=1, accelerator="cpu", progress=False)
        return history.epochs[0].seconds

    def bare_epoch() -> float:
        started = time.perf_counter()
        for batch, targets in ready:
            optimizer.zero_grad()
            F.cross_entropy(bare(batch).logits, targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return time.perf_counter() - started

    turns = [(one_epoch(), bare_epoch()) for _ in range(4)][1:]
    seconds = min(ours for ours, _ in turns), min(theirs for _, theirs in turns)
    case = f"ConvNet, batch 64, {images / seconds[0]:.0f} images a second"
    ratio = seconds[1] / seconds[0]
    name = "images a second: fit / bare loop"
    return row(name, case, "times", ratio, 0.85, at_least=True, seconds=seconds)


def quick_training(images: int = 3200) -> SpeedRow:
    """Training under `quick` against `paper`: seconds of an epoch of each in turns, times its epochs.

    An epoch includes validation, on a quarter as many images. Those of `paper`, which stops early, are the
    mean of its rows; `quick` has its full number.
    """
    specs = catalogue()
    found = summary.load(RESULTS.parent, specs)
    taken = found.get("mnist-paper", "daedl", "mnist", "cost", "training", "epochs")
    if taken is None:
        raise ValueError(
            f"no rows of mnist-paper in {RESULTS.parent}; expected the epochs that DAEDL took: run "
            "daedl bench run mnist-ood --protocol paper --methods daedl first"
        )
    train, val = random_images(images), random_images(images // 4)

    def epoch(protocol: Protocol) -> float:
        # As the experiments train it: a density of noise would mean nothing.
        classifier = daedl.Classifier(protocol.build(), daedl.methods.DAEDL().training_method())
        options = {**protocol.training, "max_epochs": 1}
        size = options.pop("batch_size")
        history = daedl.fit(
            classifier,
            train.batches(size, shuffle=True),
            val.batches(size),
            accelerator="cpu",
            progress=False,
            **options,
        )
        return history.epochs[0].seconds

    quick, paper = (specs.protocols[name] for name in ("mnist-quick", "mnist-paper"))
    turns = [(epoch(quick), epoch(paper)) for _ in range(4)][1:]
    epochs = quick.training["max_epochs"], taken.mean
    seconds = (
        epochs[0] * min(ours for ours, _ in turns),
        epochs[1] * min(theirs for _, theirs in turns),
    )
    case = f"{epochs[0]} epochs against {epochs[1]:g} ({taken.n} seeds) of {images:,} images"
    name = "training: quick / paper protocol of MNIST"
    return row(name, case, "times", seconds[0] / seconds[1], 0.2, seconds=seconds)


def kept_memory(turns: int = 3) -> SpeedRow:
    """Training steps where freed memory stays against those where it goes back, as glibc has it by itself.

    Each in processes of their own, in turns; the median step counts, as memory does not go back every time.
    """
    context = get_context("spawn")
    sides: dict[bool, list[float]] = {True: [], False: []}
    for kept in [True, False] * turns:
        with ProcessPoolExecutor(1, context) as process:
            sides[kept].append(process.submit(median_step, kept, torch.get_num_threads()).result())
    ours, reference = (median(each) for each in sides.values())
    name = "training step: freed memory kept / given back"
    case = f"ConvNet, batch 32, {turns} processes each"
    return row(name, case, "times", ours / reference, 1.0, seconds=(ours, reference))


def median_step(kept: bool, threads: int, steps: int = 60) -> float:
    """Seconds of the median of so many training steps in this process."""
    torch.set_num_threads(threads)
    if kept and not keep_freed_memory():
        raise OSError("the C library is not glibc; expected it, as this measures its settings")
    network = ConvNet(1, 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    images, targets = torch.rand(32, 1, 28, 28), torch.arange(32) % 10
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(network(images).logits, targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def density_fit() -> list[SpeedRow]:
    """Passes over the network while fitting, and memory beyond the features for 200,000 of them."""
    classifier = daedl.Classifier(ConvNet(1, 10, image_size=8))
    images, targets = torch.rand(1000, 1, 8, 8), torch.arange(1000) % 10
    calls: list[int] = []
    classifier.network.register_forward_hook(
        lambda _module, inputs, _out: calls.append(len(inputs[0]))
    )
    classifier.fit_post_hoc([(images, targets)])
    passes = row(
        "passes over the network to fit the density", "1,000 images", "", sum(calls) / 1000, 1.0
    )
    samples, classes, width = 200_000, 10, 512
    features = torch.randn(samples, width)
    started, before = time.perf_counter(), _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's peak starts anew from here
    DensityScorer.fit(features, torch.arange(samples) % classes, classes)
    extra = (_memory("VmHWM") - before) / 2**20
    seconds = time.perf_counter() - started
    # Statistics, their shrunk form, and the factors in float64 and float32: a handful of C H² float64.
    limit = 8 * classes * width**2 * 8 / 2**20
    case = f"N {samples:,}, C {classes}, H {width}: features {samples * width * 4 / 2**20:.0f} MiB"
    memory = row("memory beyond the features", case, "MiB (limit 8 C H² float64)", extra, limit)
    return [passes, memory, row("fitting the density", case, "seconds", seconds)]


def _memory(field: str) -> float:
    """This process's memory in bytes, by a field of Linux's /proc/self/status."""
    status = Path("/proc/self/status").read_text("utf-8")
    return 1024 * float(status.split(f"{field}:")[1].split()[0])


def measure(console: Console, only: str) -> list[SpeedRow]:
    """The figures whose name holds `only`, told as they come."""
    steps: dict[str, Callable[[], SpeedRow | list[SpeedRow]]] = {
        "density": density_fit,  # first: memory that others freed would hide what it takes
        "prediction, ConvNet": lambda: prediction(ConvNet(1, 10), limit=1.20),
        "prediction, VGG16": lambda: prediction(VGG16(3, 10), limit=1.05),
        "scoring, 10 classes": lambda: scoring(10, 576, 1000),
        "scoring, 100 classes": lambda: scoring(100, 512, 256),
        "scoring, ill-conditioned": lambda: scoring(10, 576, 1000, decay=3.0, limit=None),
        "training step": training_step,
        "throughput": throughput,
        "quick training": quick_training,
        "memory": kept_memory,  # last: it changes the process
    }
    rows: list[SpeedRow] = []
    for name in (each for each in steps if only in each):
        with console.status(f"measured {len(rows)} figures"):
            found = steps[name]()
        rows += found if isinstance(found, list) else [found]
    return rows


def main() -> int:
    """Measure, show, write the rows; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="figures whose name holds this, such as memory")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    console = Console()
    return conclude(console, "Speed and memory", measure(console, options.only), options.rows)


if __name__ == "__main__":
    sys.exit(main())
