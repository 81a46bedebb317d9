"""Shared by the tests of experiments: small images, a small specification, and invented rows."""

import torch

from daedl.data import ImageSet
from daedl_bench.results import Row

TINY = """
[protocol.tiny]
title = "two epochs of a small network"
data = "stripes"
split = [240, 60]
network = { name = "ConvNet", in_channels = 1, num_classes = 3, image_size = 8, channels = 4 }
training = { max_epochs = 2, batch_size = 32, learning_rate = 1e-3, lr_decay = 0.95, patience = 5 }

[method]
plus = { name = "edl+", spectral = "default" }
full = { name = "daedl", spectral = "default", covariance = "full" }
tied = { name = "daedl", spectral = "default", covariance = "tied" }
fisher = { name = "i-edl" }
flow = { name = "postnet" }
pair = { name = "ensemble", size = 2 }
full-pair = { name = "ensemble", member = "daedl", size = 2 }

[experiment.tiny]
title = "Stripes against noise"
protocols = { short = "tiny" }
methods = ["plus", "full", "tied"]
test = "stripes"
ood = ["noise"]
"""


def stripes(name, split):
    """300 noisy images of 8 x 8 in three classes; in the dataset "stripes" they show their class."""
    if name == "nowhere":
        raise FileNotFoundError("no file of nowhere")
    generator = torch.Generator().manual_seed(sum(map(ord, name + split)))
    labels = torch.arange(300) % 3
    images = torch.randint(0, 60, (300, 1, 8, 8), generator=generator)
    if name == "stripes":
        for c in range(3):
            images[labels == c, :, 2 * c : 2 * c + 3] += 180
    return ImageSet(images.to(torch.uint8), labels, name, split)


def row(method, data, task, score, metric, value, seed=0, **fields):
    """A row; `fields` name the experiment and the protocol."""
    circumstances = {
        "experiment": "mnist-ood",
        "seconds": 1.0,
        "torch": "2.13.0",
        "daedl": "0.1.0",
        "commit": "abc1234",
        "threads": 1,
        "protocol": "mnist-quick",
    }
    return Row(
        method=method,
        data=data,
        task=task,
        score=score,
        metric=metric,
        value=value,
        seed=seed,
        **circumstances | fields,
    )
