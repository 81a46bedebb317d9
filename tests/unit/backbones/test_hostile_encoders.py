"""Model files with a valid digest whose encoder or tokenizer is invalid, hostile, or not of this model."""

import json
import sys

import pytest
import torch

import daedl
from daedl import storage
from daedl.data import TextPreprocess
from daedl_bench.memory import memory, reset_peak
from daedl_bench.robustness.tiny import changed
from tiny_encoder import write_encoder

pytest.importorskip("transformers")

CONFIG = "network.arguments.config"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    path = folder / "model.daedl"
    daedl.Classifier.from_backbone(f"text:{write_encoder(folder)}", 3, method="softmax").save(path)
    return storage.load(path)


@pytest.fixture
def contacted():
    """Events of connections and questions; the hook can't be removed."""
    events, listening = [], True

    def hook(event, arguments):
        if listening and event in ("socket.connect", "socket.getaddrinfo", "builtins.input"):
            events.append(f"{event} {arguments}")

    sys.addaudithook(hook)
    yield events
    listening = False


def load(path, saved, *changes):
    tensors, description = saved
    for keys, value in changes:
        description = changed(description, keys, value)
    storage.save(path, tensors, description)
    return daedl.load(path)


@pytest.mark.parametrize(
    "config",
    [
        # Code of the hub, after a question on the terminal.
        {"model_type": "encoder-decoder", "auto_map": {"AutoModel": "a/b--c.D"}, "encoder": {}},
        # Weights of the hub, or of another package.
        {"model_type": "dpt", "use_pretrained_backbone": True, "backbone": "a/b"},
        {"model_type": "mask2former", "use_pretrained_backbone": True, "backbone": "a/b"},
        {"model_type": "timm_backbone", "use_pretrained_backbone": True, "backbone": "resnet18"},
        {"model_type": "timm_wrapper", "architecture": "hf_hub:a/b"},
        # A package that is not installed.
        {"model_type": "layoutlmv2"},
        {"model_type": "own"},
        {"model_type": ["bert"]},
        {},
    ],
)
def test_other_architectures_are_rejected_without_a_connection(tmp_path, saved, contacted, config):
    with pytest.raises(ValueError, match="can't be rebuilt"):
        load(tmp_path / "m", saved, (CONFIG, config))
    assert contacted == []


@pytest.mark.parametrize("kernel", ["a/b", "kernels-community/flash-attn", "flash_attention_2"])
def test_kernels_that_a_file_names_are_not_used(tmp_path, saved, contacted, kernel):
    model = load(tmp_path / "m", saved, (f"{CONFIG}.attn_implementation", kernel))
    assert model.predict(["pay"]).probs.isfinite().all()
    assert contacted == []


def test_labels_of_the_encoder_are_not_used(tmp_path, saved):
    before = reset_peak()
    with pytest.raises(ValueError, match="10000000"):
        load(tmp_path / "m", saved, (f"{CONFIG}.num_labels", 10**7))
    load(tmp_path / "m", saved, (f"{CONFIG}.num_labels", 10**6))
    assert memory("VmHWM") - before < 50


def test_files_contain_no_path_of_the_encoder(saved):
    assert "_name_or_path" not in saved[1]["network"]["arguments"]["config"]


def tokenizer(saved, change):
    content = json.loads(saved[1]["preprocess"]["tokenizer"])
    change(content)
    return "preprocess.tokenizer", json.dumps(content)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["model"].update(vocab={"[UNK]": 10**6}),
        lambda t: t["model"].update(vocab={"[UNK]": 0, "pay": 2**32 - 1}),
        lambda t: t["post_processor"]["special_tokens"]["[CLS]"].update(ids=[10**6]),
        lambda t: t["post_processor"].update(
            single=[{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 1000
        ),
    ],
)
def test_a_tokenizer_of_another_encoder_is_rejected(tmp_path, saved, change):
    with pytest.raises(ValueError, match="can't be rebuilt"):
        load(tmp_path / "m", saved, tokenizer(saved, change))


@pytest.mark.parametrize("length", [21, 5000, 10**18])
def test_more_tokens_than_the_encoder_takes_are_rejected(tmp_path, saved, length):
    with pytest.raises(ValueError, match="can't be rebuilt"):
        load(tmp_path / "m", saved, ("preprocess.max_length", length))


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 10**6},
        {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40,
        },
    ],
)
def test_a_tokenizer_that_enlarges_texts_is_rejected(tmp_path, saved, normalizer):
    with pytest.raises(ValueError, match=r"can't be rebuilt.*times"):
        load(tmp_path / "m", saved, tokenizer(saved, lambda t: t.update(normalizer=normalizer)))


def test_usual_normalizers_are_accepted(tmp_path, saved):
    kinds = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        *[{"type": "Replace", "pattern": {"String": "``"}, "content": '"'}] * 40,
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    normalizer = {"type": "Sequence", "normalizers": kinds}
    model = load(tmp_path / "m", saved, tokenizer(saved, lambda t: t.update(normalizer=normalizer)))
    assert model.predict(["pay"]).probs.isfinite().all()


def test_a_tokenizer_that_gives_up_raises_an_error(tmp_path, saved):
    pattern = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    model = load(tmp_path / "m", saved, tokenizer(saved, lambda t: t.update(normalizer=pattern)))
    with pytest.raises(ValueError, match="tokenizer"):
        model.predict(["a" * 40 + "!"])


def test_half_a_surrogate_pair_is_rejected(saved, tmp_path):
    model = load(tmp_path / "m", saved)
    with pytest.raises(ValueError, match=r"text 1 .*surrogate"):
        model.predict(["pay", "a\ud800"])


def test_only_the_start_of_a_text_is_tokenized(saved, tmp_path):
    """The rest can't change the tokens, unless hundreds of characters become none."""
    model = load(tmp_path / "m", saved)
    assert isinstance(model.preprocess, TextPreprocess)
    before = reset_peak()
    found = model.prepare(["pay " * 2_000_000, "pay"])
    assert memory("VmHWM") - before < 50
    assert torch.equal(found["input_ids"], model.prepare(["pay " * 50, "pay"])["input_ids"])
