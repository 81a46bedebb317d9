"""Frozen layers of sentence encoders whose outputs are kept while the layers after them are trained."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import daedl
from daedl.backbones.memory import Memory
from tiny_encoder import TOPICS, sentences, write_encoder

transformers = pytest.importorskip("transformers")

EPOCHS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    folder = write_encoder(tmp_path_factory.mktemp("encoder"))
    return daedl.Classifier.from_backbone(f"text:{folder}", 3)


@pytest.fixture
def bert(model):
    network = model.network
    return dict(network.backbone_blocks())["encoder"].model.eval()


@pytest.fixture
def tokens(model):
    """Token ids and masks of texts of different lengths, and the lengths."""
    tokens = model.prepare(["pay", "pay the bill", "rain and snow and wind", "play"])
    return tokens, tokens["attention_mask"].sum(1)


def data(number, seed):
    pairs, names = sentences(number, seed), list(TOPICS)
    return [text for text, _ in pairs], torch.tensor([names.index(topic) for _, topic in pairs])


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_training_on_kept_outputs_equals_training_that_computes_them(model):
    train, val = data(60, 0), data(18, 1)
    runs = []
    for keeps in (True, False):
        own = copy.deepcopy(model)
        network = own.network
        network.freeze(network.finetuned)
        if not keeps:
            network.remembering = nullcontext
        first = dict(network.backbone_blocks())["encoder"].model.encoder.layer[0]
        seen = []
        first.register_forward_hook(
            lambda _, arguments, __, seen=seen: seen.append(len(arguments[0]))
        )
        history = daedl.fit(own, train, val, max_epochs=EPOCHS, progress=False)
        runs.append((own, history, sum(seen)))
    (kept, kept_history, kept_texts), (full, full_history, full_texts) = runs
    # Once per text, and the first ones once more to find out whether layers can start in the middle;
    # otherwise in every epoch, for the density, for its calibration and for its effect.
    assert kept_texts <= 60 + 18 + 16
    assert full_texts == EPOCHS * (60 + 18) + 60 + 2 * 18
    losses = [
        [(each.train_loss, each.val_loss) for each in history.epochs]
        for history in (kept_history, full_history)
    ]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]))
    for name, weights in full.network.state_dict().items():
        torch.testing.assert_close(
            kept.network.state_dict()[name], weights, rtol=1e-4, atol=1e-5, msg=name
        )
    texts = data(30, 2)[0]
    torch.testing.assert_close(
        kept.predict(texts).epistemic, full.predict(texts).epistemic, rtol=1e-4, atol=1e-5
    )


def test_nothing_is_kept_after_training_or_if_every_layer_is_frozen(model):
    network = copy.deepcopy(model.network)
    encoder = dict(network.backbone_blocks())["encoder"]
    with network.remembering():
        assert encoder.memory is None
    for trained_from, first in ((network.finetuned, 1), ("encoder", None)):
        network.freeze(trained_from)
        with network.remembering():
            assert getattr(encoder.memory, "first", None) == first
        assert encoder.memory is None


@pytest.mark.parametrize("capacity", [0, 400, 2**20])
def test_states_are_kept_up_to_the_capacity(bert, tokens, capacity):
    memory = Memory(bert, "encoder.layer", 1, capacity)
    with torch.no_grad():
        expected = bert(**tokens[0]).last_hidden_state
        runs = [memory.run(*tokens) for _ in range(2)]
    assert memory.resumes
    assert sum(each.nbytes for each in memory.states.values()) + memory.left == capacity
    assert (len(memory.states) == 4) == (capacity == 2**20)
    mask = tokens[0]["attention_mask"].bool()
    for each in runs:
        torch.testing.assert_close(each[mask], expected[mask])


def test_states_of_mixed_precision_are_used_by_mixed_precision_only(bert, tokens):
    memory = Memory(bert, "encoder.layer", 1)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            memory.run(*tokens)
        torch.testing.assert_close(memory.run(*tokens), bert(**tokens[0]).last_hidden_state)
    assert len(memory.states) == 8


class Shared(nn.Module):
    """Layers of which the first one's output also enters every other one, as relative positions do in T5."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(40, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, input_ids, attention_mask):
        state = first = self.layers[0](self.embeddings(input_ids))
        for layer in self.layers[1:]:
            state = layer(state) + first
        return SimpleNamespace(last_hidden_state=state)


class Numbered(Shared):
    """Layers by their numbers, of which none can be left out."""

    def forward(self, input_ids, attention_mask):
        state = self.embeddings(input_ids)
        for number in range(3):
            state = self.layers[number](state)
        return SimpleNamespace(last_hidden_state=state)


@pytest.mark.parametrize("kind", [Shared, Numbered])
def test_layers_that_cannot_start_in_the_middle_run_from_the_start(tokens, kind):
    torch.manual_seed(0)
    module = kind()
    memory = Memory(module, "layers", 2)
    for _ in range(2):
        torch.testing.assert_close(memory.run(*tokens), module(**tokens[0]).last_hidden_state)
    assert not memory.resumes
    assert not memory.states
    assert len(module.layers) == 3
