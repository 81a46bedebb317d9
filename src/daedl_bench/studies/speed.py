"""Speed and memory of the library, each figure measured together with its reference.

Times are the best of several alternating repetitions, so that other load on the machine affects both sides
equally. The exit status is 1 if a figure exceeds its limit.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import daedl
from daedl.cli.memory import keep_freed_memory
from daedl.data import ImageSet, augmentation
from daedl.density import ClassStatistics, DensityScorer
from daedl.networks import VGG16, ConvNet, Network, lay_out
from daedl_bench.memory import memory, reset_peak
from daedl_bench.options import RESULTS
from daedl_bench.spec import catalogue
from daedl_bench.studies._machine import (
    Limited,
    best_times,
    compared,
    conclude,
    cross_entropy,
    epoch,
    plain_epoch,
)

Rows = list[Limited]
app = typer.Typer()


def prediction(network: Network, limit: float) -> Rows:
    """`predict` against the network's own forward pass, batch 256; the density is fitted to noise."""
    classifier = daedl.Classifier(network).eval()
    images = torch.rand(3000, *network.input_shape)
    targets = torch.arange(3000) % network.num_classes
    classifier.fit_post_hoc(zip(torch.split(images, 250), torch.split(targets, 250), strict=True))
    batch = images[:256]

    def forward() -> None:
        with torch.no_grad():
            classifier(batch)

    # A VGG16 pass takes seconds: with 5 repeats two runs gave 0.99 and 1.10 (both are in the rows).
    repeats = 30 if isinstance(network, ConvNet) else 15
    times = best_times({"ours": lambda: classifier.predict(batch), "theirs": forward}, repeats)
    scorer = classifier.fitted
    precision = _precision(scorer) if isinstance(scorer, DensityScorer) else "none"
    case = f"{type(network).__name__}, batch 256, density in {precision}"
    return [compared("predict / forward", case, times["ours"], times["theirs"], limit)]


def gaussian_features(classes: int, width: int, decay: float) -> tuple[Tensor, Tensor]:
    """Features (N, H) whose covariances have eigenvalues k^-decay, in other directions per class.

    Features of trained networks have such spectra; decay 1.5 gives condition numbers near 1e4.
    """
    generator = torch.Generator().manual_seed(0)
    scales = torch.arange(1, width + 1, dtype=torch.float64).pow(-decay / 2)
    features = []
    for _ in range(classes):
        raw, rows, center = (
            torch.randn(count, width, generator=generator, dtype=torch.float64)
            for count in (width, 3 * width, 1)
        )
        features.append((rows * scales) @ torch.linalg.qr(raw).Q + center)
    targets = torch.arange(classes).repeat_interleave(3 * width)
    return torch.cat(features).float(), targets


def scoring(
    classes: int, width: int, batch: int, decay: float = 1.5, limit: float | None = 3.0
) -> Rows:
    """Density scoring against MultivariateNormal.log_prob in float64, on the same features.

    `limit` is None for features so ill-conditioned that the library computes in float64.
    """
    features, targets = gaussian_features(classes, width, decay)
    scorer = DensityScorer.fit(features, targets, classes)
    density = scorer.density
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

    times = best_times({"ours": lambda: density(probe), "theirs": reference}, 8)
    expected = reference()
    error = float(((density(probe) - expected) / expected).abs().max())
    condition = f"{_precision(scorer)}, condition {float(density.condition.max()):.0e}"
    case, name = f"C {classes}, H {width}, B {batch}, {condition}", "MultivariateNormal.log_prob"
    sides = times["ours"], times["theirs"]
    return [
        compared(f"{name} / density", case, *sides, limit, faster=True, unit="times as fast"),
        Limited("density, relative difference", case, "", error, 1e-5),
    ]


def step(network: nn.Module, images: Tensor, loss: Callable[..., Tensor]) -> Callable[[], None]:
    """A training step on the same batch of `images`."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    targets = torch.arange(len(images)) % 10

    def run() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss(network, images, targets))
        optimizer.step()

    return run


def training_step() -> Rows:
    """An evidential step against a cross-entropy step, on the same spectrally normalised ConvNet."""
    network = daedl.spectral_normalize(ConvNet(1, 10)).train()
    images, method = torch.rand(64, 1, 28, 28), daedl.methods.DAEDL.as_published()
    ours = step(network, images, partial(method.training_loss, epoch=0))
    times = best_times({"ours": ours, "theirs": step(network, images, cross_entropy)}, 40)
    name, case = "evidential step / cross-entropy step", "ConvNet, batch 64"
    return [compared(name, case, times["ours"], times["theirs"], 1.10)]


def random_images(count: int, shape: tuple[int, int, int] = (1, 28, 28)) -> ImageSet:
    """Noise with labels."""
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % 10, "random", "train")


def throughput(images: int = 3200) -> Rows:
    """Images per second of `fit` against a plain loop with cross-entropy on prepared batches.

    Both train the same spectrally normalised ConvNet; `fit` converts uint8 images, and stores weights
    channels last, while the loop keeps PyTorch's default.
    """
    data = random_images(images)
    # Without the density, whose fit to noise takes longer than the epoch and is not timed.
    classifier = daedl.Classifier(
        ConvNet(1, 10), daedl.methods.DAEDL.as_published().training_method()
    )
    bare = daedl.spectral_normalize(ConvNet(1, 10)).train()
    ready = [(classifier.prepare(images), targets) for images, targets in data.batches(64)]
    optimizer = torch.optim.Adam(bare.parameters(), lr=1e-3)
    sides = {
        "ours": epoch(classifier, data, batch_size=64),
        "theirs": plain_epoch(bare, optimizer, ready),
    }
    ours, theirs = best_times(sides, 3).values()
    case = f"ConvNet, batch 64, {images / ours:.0f} images a second"
    return [compared("images a second: fit / bare loop", case, ours, theirs, 0.85, faster=True)]


def protocol_cpu(images: int = 5120) -> Rows:
    """Protocol `cpu` of CIFAR-10: `fit`, with augmentation, against a plain loop, and prediction.

    Both train the same network with the same layout and precision, the loop on prepared batches.
    """
    specs = catalogue()
    protocol = specs.protocols["cifar10-cpu"]
    method = specs.method("daedl", protocol).training_method()
    classifier, bare = protocol.classifier(method), protocol.classifier(method)
    options, data = protocol.fit_options(method), random_images(images, (3, 32, 32))
    size, augment = options["batch_size"], augmentation(protocol.augment)
    ready = [(bare.prepare(pixels), targets) for pixels, targets in data.batches(size)]
    lay_out(bare.network.train())
    optimizer = options["optimizer"](bare.network.parameters())
    sides = {
        "ours": epoch(classifier, data, augment=augment, **options),
        "theirs": plain_epoch(bare.network, optimizer, ready, bfloat16=True),
    }
    ours, theirs = best_times(sides, 3).values()
    network = protocol.classifier(daedl.methods.DAEDL()).network
    case = f"{type(network).__name__}, batch {size}, {images / ours:.0f} images a second"
    name = "images a second: fit / plain loop, same layout and precision"
    row = compared(name, case, ours, theirs, 0.9, faster=True)
    return [row, *prediction(network, limit=1.10)]


def imports(rounds: int = 5) -> Rows:
    """Time to import the library and to show its help, alternating with references in fresh processes."""
    library = "from daedl import Classifier, Prediction, fit, methods, metrics"
    shown = "import sys; sys.argv = ['daedl', '--help']; from daedl.cli import app; app()"
    scripts = "import torch", library, "import typer", shown
    times = best_times({each: partial(_python, each) for each in scripts}, rounds)
    beyond = times[shown] - times["import typer"]
    return [
        compared("import: daedl / torch", library, times[library], times["import torch"], 1.6),
        Limited("daedl --help, beyond import typer", "fresh process", "s", beyond, 1.0),
    ]


def _python(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def kept_memory(turns: int = 3) -> Rows:
    """Training steps with freed memory kept, against glibc's default of returning it to the system.

    Both variants run in separate processes, alternating; the median step counts.
    """
    sides: dict[bool, list[float]] = {True: [], False: []}
    for kept in [True, False] * turns:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            sides[kept].append(process.submit(median_step, kept, torch.get_num_threads()).result())
    ours, reference = (median(each) for each in sides.values())
    name = "training step: freed memory kept / given back"
    return [compared(name, f"ConvNet, batch 32, {turns} processes each", ours, reference, 1.0)]


def median_step(kept: bool, threads: int, steps: int = 60) -> float:
    """Seconds of the median training step in this process."""
    torch.set_num_threads(threads)
    if kept and not keep_freed_memory():
        raise OSError("the C library is not glibc; expected it, as this measures its settings")
    network = ConvNet(1, 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = step(network, torch.rand(32, 1, 28, 28), cross_entropy)
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def density_fit() -> Rows:
    """Passes over the network while fitting, and memory beyond the features for 200,000 of them."""
    classifier = daedl.Classifier(ConvNet(1, 10, image_size=8))
    images, targets = torch.rand(1000, 1, 8, 8), torch.arange(1000) % 10
    calls: list[int] = []
    classifier.network.register_forward_hook(
        lambda _module, inputs, _out: calls.append(len(inputs[0]))
    )
    classifier.fit_post_hoc([(images, targets)])
    passes = "passes over the network to fit the density"
    samples, classes, width = 200_000, 10, 512
    features = torch.randn(samples, width)
    started, before = time.perf_counter(), reset_peak()
    DensityScorer.fit(features, torch.arange(samples) % classes, classes)
    extra = memory("VmHWM") - before
    seconds = time.perf_counter() - started
    # Statistics, their shrunk form, and the factors in float64 and float32: a handful of C H² float64.
    limit = 8 * classes * width**2 * 8 / 2**20
    case = f"N {samples:,}, C {classes}, H {width}: features {samples * width * 4 / 2**20:.0f} MiB"
    return [
        Limited(passes, "1,000 images", "", sum(calls) / 1000, 1.0),
        Limited("memory beyond the features", case, "MiB (limit 8 C H² float64)", extra, limit),
        Limited("fitting the density", case, "seconds", seconds),
    ]


def _precision(scorer: DensityScorer) -> str:
    return str(scorer.density.dtype).removeprefix("torch.")


STEPS: dict[str, Callable[[], Rows]] = {
    "density": density_fit,  # first, as memory freed by the others would hide its peak
    "prediction, ConvNet": lambda: prediction(ConvNet(1, 10), limit=1.20),
    "prediction, VGG16": lambda: prediction(VGG16(3, 10), limit=1.05),
    "scoring, 10 classes": lambda: scoring(10, 576, 1000),
    "scoring, 100 classes": lambda: scoring(100, 512, 256),
    "scoring, ill-conditioned": lambda: scoring(10, 576, 1000, decay=3.0, limit=None),
    "training step": training_step,
    "throughput": throughput,
    "protocol cpu": protocol_cpu,
    "memory": kept_memory,
    "imports": imports,
}


@app.command(help=__doc__)
def main(
    only: Annotated[str, typer.Option(help="Figures whose name contains this.")] = "",
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    rows: Annotated[Path, typer.Option(help="File to append to.")] = RESULTS / "speed.jsonl",
) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    measured = [row for name in STEPS if only in name for row in STEPS[name]()]
    conclude("Speed and memory", measured, rows)
