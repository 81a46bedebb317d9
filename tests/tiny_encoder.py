"""A tiny sentence encoder with random weights, in the folder format of transformers, and texts for it."""

import csv

TOPICS = {
    "money": ["pay", "bill", "card", "money", "bank", "rent", "transfer"],
    "weather": ["rain", "sun", "snow", "wind", "storm", "cloud"],
    "music": ["play", "song", "music", "jazz", "band", "guitar"],
}
WORDS = [word for words in TOPICS.values() for word in words]


def write_encoder(folder):
    """Writes config.json, model.safetensors and tokenizer.json."""
    import tokenizers
    import torch
    import transformers

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokens = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokens.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokens.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]", model_max_length=16
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def sentences(number, seed=0):
    """Pairs of text and topic."""
    import random

    draw = random.Random(seed)
    names = list(TOPICS)
    topics = [names[i % len(names)] for i in range(number)]
    return [
        (" ".join(draw.choices(TOPICS[topic], k=draw.randint(2, 6))), topic) for topic in topics
    ]


def write_csv(path, pairs, head=("query", "intent")):
    """Writes pairs with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *pairs])
    return path
