"""Trains a classifier of texts from a CSV file, and asks it about texts of other topics.

    python examples/text.py intents.csv --text query --label intent --ask "show my balance" "who won"

Without a CSV file, 48 sentences about money, weather and music. The encoder, all-MiniLM-L6-v2, is in the
extra `text`; `--encoder` names another one.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch

import daedl
from daedl.data import TextSet, read_text_set
from daedl.training import embedding_recipe

VERBS = {
    "money": ("pay", "check", "transfer", "show"),
    "weather": ("tell me about", "warn me of", "predict", "describe"),
    "music": ("play", "stop", "repeat", "find"),
}
NOUNS = {
    "money": ("my bill", "the rent", "my balance", "the card payment"),
    "weather": ("the rain", "the storm", "the snow tomorrow", "sunshine"),
    "music": ("a song", "some jazz", "the guitar solo", "my favourite band"),
}
ASKED = ("pay the card bill", "will the storm bring snow", "who was the first emperor of rome")


def sentences() -> TextSet:
    """Returns sentences about three topics."""
    topics = tuple(VERBS)
    pairs = [
        (" ".join(words), number)
        for number, topic in enumerate(topics)
        for words in product(VERBS[topic], NOUNS[topic])
    ]
    labels = torch.tensor([number for _, number in pairs])
    return TextSet([text for text, _ in pairs], labels, "sentences", topics)


def train(texts: TextSet, encoder: str, seed: int = 0) -> daedl.Classifier:
    """Trains on three fifths of the texts, and chooses thresholds on one fifth that nothing else has seen."""
    fifth = len(texts) // 5
    calibration, rest = texts.random_split(fifth, seed)
    held_out, training = rest.random_split(fifth, seed)
    torch.manual_seed(seed)
    model = daedl.Classifier.from_backbone(encoder, class_names=texts.names)
    recipe = embedding_recipe()
    options = {"batch_size": recipe.batch_size, "seed": seed, **recipe.options()}
    daedl.fit_frozen(model, training, held_out, progress=False, **options)
    print(model.calibrate(calibration, daedl.MaxRejectionRate(0.2)))
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("csv", type=Path, nargs="?")
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="label")
    parser.add_argument("--encoder", default="all-minilm-l6-v2")
    parser.add_argument("--ask", nargs="*", default=ASKED)
    parser.add_argument("--out", type=Path, default=Path("texts.daedl"))
    options = parser.parse_args(arguments)
    texts = sentences()
    if options.csv is not None:
        texts = read_text_set(options.csv, options.text, options.label)
    model = train(texts, options.encoder)
    model.save(options.out)
    for text, record in zip(options.ask, model.predict(list(options.ask)).records(), strict=True):
        verdict = "accepted" if record["accept"] else f"rejected: {record['reason']}"
        print(f"{text}: {record['class_name']}, {verdict}")
    print(f"daedl serve {options.out}")


if __name__ == "__main__":
    main()
