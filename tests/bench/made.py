"""What the tests of experiments share: small images, and rows that nobody measured."""

import torch

from daedl.data import ImageSet
from daedl_bench.rows import Row


def stripes(name, split):
    """300 noisy images of 8 x 8 in three classes; those of the set "stripes" show their class."""
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
    """A row, of the experiment and protocol that `fields` name."""
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
