"""Batches of tuples and mappings of tensors, and modules of transformers built from a configuration."""

from collections import UserDict, namedtuple
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import daedl
from daedl import storage
from daedl.bulk import fit_density, predict_files
from daedl.checks import import_optional
from daedl.inputs import convert, form_of, join, select, split

VOCABULARY, CLASSES = 40, 3


@pytest.fixture(scope="module")
def bert():
    """A tiny BERT classifier with random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        num_labels=CLASSES,
    )
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def queries(number=60, seed=0):
    """Token ids whose range identifies the class, with masks; lengths differ."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % CLASSES
    lengths = torch.randint(4, 9, (number,), generator=generator)
    ids = torch.randint(1, 10, (number, 8), generator=generator) + 10 * labels[:, None]
    mask = (torch.arange(8) < lengths[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


class Samples(Dataset):
    """Samples as mappings without padding, like those of Hugging Face's datasets."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data["labels"])

    def __getitem__(self, index):
        length = int(self.data["attention_mask"][index].sum())
        ids, mask = (self.data[name][index, :length] for name in ("input_ids", "attention_mask"))
        return {"input_ids": ids, "attention_mask": mask, "labels": int(self.data["labels"][index])}


def padded(samples):
    """A collator that pads to the longest sequence of the batch."""
    names = ("input_ids", "attention_mask")
    rows = {name: [each[name] for each in samples] for name in names}
    batch = {name: nn.utils.rnn.pad_sequence(each, batch_first=True) for name, each in rows.items()}
    return {**batch, "labels": torch.tensor([each["labels"] for each in samples])}


def inputs_of(data):
    return {name: each for name, each in data.items() if name != "labels"}


def test_every_form_of_batches_gives_the_same_fit(bert):
    data = queries()
    inputs, labels = inputs_of(data), data["labels"]
    forms = {
        "whole mapping": data,
        "user dict of arrays": UserDict({name: each.numpy() for name, each in data.items()}),
        "pair": (inputs, labels),
        "batches": [{name: each[k : k + 20] for name, each in data.items()} for k in (0, 20, 40)],
        "collator": DataLoader(Samples(data), 7, shuffle=True, collate_fn=padded),
        "workers": DataLoader(Samples(data), 16, collate_fn=padded, num_workers=1),
    }
    densities = {}
    for name, form in forms.items():
        model = daedl.Classifier.from_module(bert, "mean").fit_post_hoc(form, form)
        assert model.revisions[0].samples == 60
        densities[name] = model.predict(inputs).log_density
        assert torch.equal(model.collect(form)[1], labels)
        assert len(model.predict(form)) == 60
        assert model.calibrate(form, daedl.MaxRejectionRate(0.1)).samples == 60
    for name, each in densities.items():
        torch.testing.assert_close(each, densities["pair"], msg=name)


@pytest.mark.parametrize(
    "features", ["cls", "mean", "bert.pooler", "hidden", "function", "dropout"]
)
def test_features_of_transformers(bert, features):
    data = inputs_of(queries())
    with torch.no_grad():
        states = bert(**data, output_hidden_states=True).hidden_states
    mask = data["attention_mask"][..., None]
    mean = (states[-1] * mask).sum(1) / mask.sum(1)
    pooled = bert.bert.pooler(states[-1])
    expected = {"cls": states[-1][:, 0], "mean": mean, "function": states[-1][:, 1]}
    chosen = features
    if features == "function":

        def second(outputs, _inputs):
            return outputs.hidden_states[-1][:, 1]

        bert.config.output_hidden_states, chosen = True, second
    if features == "hidden":
        with pytest.raises(ValueError, match="unknown block"):
            daedl.Classifier.from_module(bert, "hidden")
        return
    try:
        model = daedl.Classifier.from_module(bert, chosen, method="softmax")
        outputs = model.collect((data, torch.zeros(60, dtype=torch.long)))[0]
    finally:
        bert.config.output_hidden_states = False
    torch.testing.assert_close(outputs.features, expected.get(features, pooled))
    torch.testing.assert_close(outputs.logits, bert(**data).logits.detach())


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_transformers_are_trained_saved_and_loaded(bert, tmp_path):
    model = daedl.Classifier.from_module(type(bert)(bert.config), "mean", method="daedl")
    assert model.method.spectral is None  # it would destroy pretrained weights
    data, held_out = queries(300), queries(90, seed=1)
    daedl.fit(model, data, held_out, max_epochs=6, learning_rate=5e-3, progress=False)
    prediction = model.predict(inputs_of(held_out))
    assert (prediction.labels == held_out["labels"]).double().mean() > 0.9
    model.save(tmp_path / "bert.daedl")
    empty = daedl.networks.FeatureModule(type(bert)(bert.config), "mean")
    loaded = daedl.Classifier.load(tmp_path / "bert.daedl", empty)
    torch.testing.assert_close(loaded.predict(held_out).log_alpha, prediction.log_alpha)


def test_padding_does_not_change_predictions(bert):
    data = queries()
    model = daedl.Classifier.from_module(bert, "mean").fit_post_hoc(data)
    longer = {name: nn.functional.pad(each, (0, 5)) for name, each in inputs_of(data).items()}
    torch.testing.assert_close(model.predict(longer).probs, model.predict(inputs_of(data)).probs)


Output = namedtuple("Output", ["logits", "embedding"])


class Two(nn.Module):
    """A module of two inputs, one of floats, that returns several outputs in one of four ways."""

    def __init__(self, returns):
        super().__init__()
        self.words, self.numbers = nn.Embedding(VOCABULARY, 6), nn.Linear(2, 6)
        self.head, self.returns = nn.Linear(6, CLASSES), returns

    def forward(self, ids, numbers):
        embedding = self.words(ids).mean(1) + self.numbers(numbers)
        return self.returns(self.head(embedding), embedding)


@pytest.mark.parametrize(
    ("returns", "features"),
    [
        (Output, "embedding"),
        (lambda logits, embedding: {"logits": logits, "embedding": embedding}, "embedding"),
        (lambda logits, embedding: (logits, embedding), lambda outputs, _: outputs[1]),
        (lambda logits, _: logits, "head"),
    ],
    ids=["object", "mapping", "tuple", "logits"],
)
def test_modules_of_several_inputs_and_outputs(returns, features):
    torch.manual_seed(0)
    module = Two(returns)
    ids, numbers = queries()["input_ids"], torch.randn(60, 2, dtype=torch.float64)
    labels = queries()["labels"]
    model = daedl.Classifier.from_module(module, features, example=(ids[:2], numbers[:2]))
    model.fit_post_hoc(((ids, numbers), labels))
    with torch.no_grad():
        embedding = module.words(ids).mean(1) + module.numbers(numbers.float())
    for data in ((ids, numbers), ((ids, numbers), labels), [(ids[:9], numbers[:9])] * 2):
        assert len(model.predict(data)) in (60, 18)
    torch.testing.assert_close(
        model.predict((ids, numbers)).labels, module.head(embedding).argmax(-1)
    )


@pytest.fixture(scope="module")
def saved(bert, tmp_path_factory):
    """A model file of the BERT classifier, and the function that reads it."""
    path = tmp_path_factory.mktemp("saved") / "bert.daedl"
    daedl.Classifier.from_module(bert, "mean").fit_post_hoc(queries()).save(path)
    return path, partial(load_bert, bert.config)


def load_bert(config, path):
    """Reads a model file into a new module."""
    module = import_optional("transformers", "this test", "'daedl[text]'")
    module = module.BertForSequenceClassification(config)
    return daedl.Classifier.load(path, daedl.networks.FeatureModule(module, "mean"))


def columns_of(data):
    """Arrays by name, as engines pass them, in memory that is read-only."""
    columns = {name: each.numpy() for name, each in inputs_of(data).items()}
    for each in columns.values():
        each.flags.writeable = False
    return columns


def test_a_loaded_model_knows_the_form_of_its_first_batch(saved, tmp_path):
    path, load = saved
    ids, expected = {"input_ids": queries()["input_ids"]}, "expected a mapping with attention_mask"
    with pytest.raises(ValueError, match=expected):
        load(path).predict(ids)
    with pytest.raises(ValueError, match=expected):
        daedl.Scorer(path, column="input_ids", load=load)(columns_of(queries()))
    tensors, description = storage.load(path)
    del description["form"]  # as in older files
    storage.save(tmp_path / "old.daedl", tensors, description)
    assert len(load(tmp_path / "old.daedl").predict(ids)) == 60


class Workers:
    """An engine with a new worker per item."""

    def map(self, build, items):
        return (build()(item) for item in items)


def test_a_density_of_parts_keeps_their_form(bert, saved):
    _, load = saved
    model = daedl.Classifier.from_module(bert, "mean")
    parts, options = [queries(40), queries(40, seed=1)], {"engine": Workers(), "load": load}
    fit_density(model, parts, **options)
    assert model.network.form == form_of(inputs_of(parts[0]))
    mixed = [parts[0], {name: each for name, each in parts[1].items() if name != "attention_mask"}]
    fresh = daedl.Classifier.from_module(bert, "mean")
    with pytest.raises(ValueError, match=r"part 1 .* expected a mapping with attention_mask"):
        fit_density(fresh, mixed, **options)


def test_a_scorer_passes_columns_by_name(saved):
    path, load = saved
    data = queries(20, seed=1)
    expected = load(path).predict(inputs_of(data)).log_density.numpy()
    columns, names = columns_of(data), ["attention_mask", "input_ids"]
    lists = {name: np.array([*each, None], object)[:-1] for name, each in columns.items()}
    named = {**columns, "id": np.arange(20)}
    for batch, column in ((columns, None), (named, names), (lists, None)):
        scorer = daedl.Scorer(path, column=column, load=load)
        assert scorer(batch)["log_density"].tolist() == expected.tolist()
        assert {each.dtype for each in scorer.inputs(batch).values()} == {np.dtype(np.int64)}
    texts = {**columns, "query": np.array(["a"] * 20)}
    with pytest.raises(ValueError, match="expected numbers"):
        daedl.Scorer(path, load=load)(texts)


def test_a_scorer_marks_broken_rows_of_several_columns(saved):
    path, load = saved
    columns = columns_of(queries(5))
    expected = daedl.Scorer(path, load=load)(columns)["log_density"]
    cells = {name: np.array([*each, None], object) for name, each in columns.items()}
    cells["input_ids"][0] = None
    cells["attention_mask"][3] = cells["attention_mask"][3][:5]
    scorer = daedl.Scorer(path, load=load, skip_broken=True)
    arrays = scorer(cells)
    assert [bool(text) for text in arrays["error"]] == [True, False, False, True, False, True]
    assert np.allclose(arrays["log_density"][[1, 2, 4]], expected[[1, 2, 4]], rtol=1e-5)
    assert np.isnan(arrays["log_density"][[0, 3, 5]]).all()
    with pytest.raises(ValueError, match=r"row 0 \(no value"):
        daedl.Scorer(path, load=load)(cells)
    alone = scorer({name: each[-1:] for name, each in cells.items()})  # none is readable
    assert alone["label"].tolist() == [-1]


def test_a_scorer_passes_columns_in_order_to_a_module_of_several_inputs(tmp_path):
    torch.manual_seed(0)
    example = queries()["input_ids"], torch.randn(60, 2)
    module = daedl.networks.FeatureModule(Two(lambda logits, _: logits), "head", example=example)
    model = daedl.Classifier(module, "softmax")
    model.save(tmp_path / "two.daedl")
    load = partial(daedl.Classifier.load, network=module)
    columns = dict(zip(("ids", "numbers"), (each.numpy() for each in example), strict=True))
    for column, batch in ((None, columns), (["ids", "numbers"], dict(reversed(columns.items())))):
        scorer = daedl.Scorer(tmp_path / "two.daedl", column=column, load=load, outputs=["probs"])
        assert np.array_equal(scorer(batch)["probs"], model.predict(example).probs.numpy())


def test_predicted_files_have_columns_by_name(saved, tmp_path):
    (path, load), data = saved, queries(30, seed=1)
    table = {name: list(each.numpy()) for name, each in data.items() if name != "labels"}
    pq.write_table(pa.table({"id": range(30), **table}), tmp_path / "in.parquet")
    options = {"column": list(table), "keep": ["id"], "load": load}
    out = tmp_path / "out.parquet"
    assert predict_files(path, [tmp_path / "in.parquet"], out, **options).broken == 0
    expected = load(path).predict(inputs_of(data)).log_density
    assert pq.read_table(out)["log_density"].to_pylist() == expected.tolist()


def test_wrong_inputs_are_explained(bert):
    data = queries()
    inputs, labels = inputs_of(data), data["labels"]
    model = daedl.Classifier.from_module(bert, "cls").fit_post_hoc(data)
    with pytest.raises(ValueError, match="attention_mask"):  # mixed keys
        model.predict({"input_ids": inputs["input_ids"]})
    mixed = [data, {name: each for name, each in data.items() if name != "attention_mask"}]
    with pytest.raises(ValueError, match="batch 1 of the calibration data"):
        model.calibrate(mixed)
    beyond = {**inputs, "input_ids": inputs["input_ids"] + VOCABULARY}
    with pytest.raises(ValueError, match=f"from 0 to {VOCABULARY - 1}"):
        model.predict(beyond)
    with pytest.raises(ValueError, match=f"expected 0 to {CLASSES - 1}"):
        model.fit_post_hoc({**data, "labels": labels + 1})
    with pytest.raises(TypeError, match="tokenizer"):
        model.prepare(["a text"])
    with pytest.raises(ValueError, match="texts"):
        model.predict(["a text", "another"])
    with pytest.raises(ValueError, match="60, 59"):
        model.fit_post_hoc({**data, "attention_mask": data["attention_mask"][1:]})
    with pytest.raises(TypeError, match="dict with input_ids"):
        model.collect([inputs])
    with pytest.raises(ValueError, match="floats"):
        model.predict({**inputs, "attention_mask": inputs["attention_mask"].double()})
    with pytest.raises(ValueError, match="hidden states"):
        daedl.Classifier.from_module(nn.Linear(4, 3), "cls", input_shape=(4,))


def test_the_vocabulary_is_named_where_another_table_is_larger():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(
        vocab_size=5, max_position_embeddings=24, num_hidden_layers=1, num_labels=3, **sizes
    )
    module = transformers.AutoModelForSequenceClassification.from_config(config)
    example = {"input_ids": torch.ones(1, 4, dtype=torch.long)}
    model = daedl.Classifier.from_module(module, "cls", method="softmax", example=example)
    with pytest.raises(ValueError, match="from 0 to 4,"):
        model.predict({"input_ids": torch.full((2, 4), 7)})


def test_inputs_without_tokens_are_explained(bert):
    inputs, labels = inputs_of(queries()), queries()["labels"]
    inputs["attention_mask"][7] = 0
    model = daedl.Classifier.from_module(bert, "mean")
    with pytest.raises(ValueError, match="mask of row 7 of batch 0"):
        model.fit_post_hoc((inputs, labels))
    none = {name: each[:, :0] for name, each in inputs.items()}
    for features in ("mean", "cls"):
        wrapped = daedl.Classifier.from_module(bert, features, method="softmax")
        with pytest.raises(ValueError, match=r"row 0|shape \(60, 0\)"):
            wrapped.predict(none)


def test_parts_with_other_numbers_of_rows_are_explained(bert):
    model = daedl.Classifier.from_module(bert, "mean", method="softmax")
    inputs = inputs_of(queries(3))
    with pytest.raises(ValueError, match="3, 2 rows"):
        model.predict({**inputs, "attention_mask": inputs["attention_mask"][:2]})


@pytest.mark.parametrize("method", ["kl-pn", "rkl-pn"])
def test_methods_trained_with_noise_reject_mappings(bert, method):
    model = daedl.Classifier.from_module(bert, "mean", method=method)
    before = {name: each.clone() for name, each in bert.state_dict().items()}
    with pytest.raises(ValueError, match="no uniform noise"):
        daedl.fit(model, queries(), max_epochs=1, accelerator="cpu", progress=False)
    assert all(torch.equal(each, before[name]) for name, each in bert.state_dict().items())


def test_a_scorer_returns_empty_arrays_for_no_rows(saved):
    path, load = saved
    columns = columns_of(queries(4))
    for skip_broken in (False, True):
        scorer = daedl.Scorer(path, load=load, skip_broken=skip_broken)
        some, none = scorer(columns), scorer({name: each[:0] for name, each in columns.items()})
        assert {name: each.dtype for name, each in none.items()} == {
            name: each.dtype for name, each in some.items()
        }
        assert {len(each) for each in none.values()} == {0}


def test_long_sequences_are_explained(bert):
    model = daedl.Classifier.from_module(bert, "cls", method="softmax")
    ids = torch.ones(2, 25, dtype=torch.long)
    with pytest.raises(ValueError, match=r"up to 25, .* at most 24 "):
        model.predict({"input_ids": ids, "attention_mask": ids})


def test_other_errors_of_a_module_are_not_hidden():
    example = queries()["input_ids"], torch.randn(60, 2)
    module = Two(lambda logits, _: logits)
    model = daedl.Classifier.from_module(module, "head", example=example, method="softmax")
    with pytest.raises(RuntimeError, match="shapes"):
        model.predict((example[0], torch.randn(60, 3)))


def test_unknown_tokens_of_a_bag_are_explained():
    module = nn.Sequential()
    module.add_module("words", nn.EmbeddingBag(VOCABULARY, 6))
    module.add_module("head", nn.Linear(6, CLASSES))
    ids = queries()["input_ids"]
    model = daedl.Classifier.from_module(module, "words", example=ids, method="softmax")
    assert len(model.predict(ids)) == 60
    for wrong in (ids + VOCABULARY, ids - 1):
        with pytest.raises(ValueError, match=f"from 0 to {VOCABULARY - 1}"):
            model.predict(wrong)


def test_a_network_with_a_shape_rejects_mappings(blobs):
    model = daedl.Classifier(daedl.networks.MLP(4, 3), "softmax")
    with pytest.raises(TypeError, match="one tensor"):
        model.fit_post_hoc({"x": blobs[0], "labels": blobs[1]}).collect(
            {"x": blobs[0], "labels": blobs[1]}
        )


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_several_processes_share_mappings(bert, two_processes):
    data = queries(120)
    loader = DataLoader(Samples(data), 30, collate_fn=padded)
    model = daedl.Classifier.from_module(type(bert)(bert.config), "mean")
    daedl.fit(model, loader, loader, max_epochs=1, progress=False, **two_processes)
    assert model.revisions[0].samples == 120


def test_parts_are_selected_split_and_joined():
    inputs = {"a": torch.arange(5), "b": (torch.rand(5, 2) * 9).numpy()}
    parts = split(inputs, 2)
    assert [len(each["a"]) for each in parts] == [2, 2, 1]
    joined = join(parts)
    assert np.array_equal(joined["b"].numpy(), inputs["b"])
    assert torch.equal(select(inputs, [3, 0])["a"], torch.tensor([3, 0]))
    texts = ["a", "b", "c"]
    assert join(split(texts, 2)) == texts
    assert select(texts, [2]) == ["c"]
    assert len(select(inputs, [])["b"]) == 0
    assert form_of(convert((torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)), lambda x: x)) == (
        "a tuple of floats (batch, n), integers (batch)"
    )
    assert form_of(torch.zeros(2, 3)) == "floats (batch, 3)"
