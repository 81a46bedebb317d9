"""Specifications: validated TOML, and keys that identify networks and figures."""

import msgspec
import pytest
from made import TINY

from daedl.methods import DAEDL, METHODS, Softmax
from daedl_bench.spec import Trial, catalogue

SHIPPED = catalogue()


def test_shipped_experiments_are_complete():
    for experiment in SHIPPED.experiments.values():
        assert experiment.protocol().classifier(Softmax()).network.num_classes == 10
        assert all(SHIPPED.method(name) for name in experiment.methods)
    assert SHIPPED.method("exp+de").spectral is None
    assert SHIPPED.method("exp+sn").spectral == SHIPPED.method("daedl").spectral


def test_an_experiment_without_methods_compares_all_of_the_library_and_its_variants():
    methods = SHIPPED.experiment("mnist-ood").methods
    assert [label for label in methods if label != "daedl-loo"] == list(METHODS)
    assert methods[methods.index("daedl") + 1] == "daedl-loo"


def test_the_default_of_daedl_is_that_of_the_library():
    protocol = SHIPPED.protocols["mnist-quick"]
    default = protocol.classifier(DAEDL()).method
    assert SHIPPED.method("daedl-default", protocol) == default
    assert SHIPPED.method("daedl", protocol) == DAEDL.as_published()


def test_the_first_label_of_equal_methods_is_canonical():
    assert SHIPPED.canonical("exp+de+sn") == "daedl"
    assert SHIPPED.canonical("exp") == "edl+"
    assert SHIPPED.canonical("unlisted") == "unlisted"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[protocol.a]\ntitel = 'x'", "did you mean 'title'"),
        ("[protocol.a]\ntitle = 3", "protocol 'a'.*title"),
        ("[experiment.a]\ntitle = 'x'\nods = ['noise']", "did you mean 'ood'"),
        ("[experiment.a]\ntitle = 'x'\nkind = 'image'", "experiment 'a'.*kind"),
        ("[experiment.a]\ntitle = 'x'\nmethods = ['deadl']", "did you mean 'daedl'"),
        ("[experiment.a]\ntitle = 'x'\nprotocols = { b = 'c' }", "unknown protocol"),
        ("[method.a]\nname = 'daedl'\ncovarianz = 'tied'", "did you mean 'covariance'"),
        ("[methods.a]\nname = 'daedl'", "did you mean 'method'"),
    ],
)
def test_mistakes_in_a_file_are_reported(text, message):
    with pytest.raises(ValueError, match=message):
        catalogue(text)


def test_methods_have_the_settings_published_for_the_dataset():
    mnist, cifar = (SHIPPED.protocols[name] for name in ("mnist-quick", "cifar10-paper"))
    assert SHIPPED.method("i-edl", mnist).fisher_weight == 0.005
    assert SHIPPED.method("i-edl", cifar).fisher_weight == 0.05


def test_keys_differ_where_networks_or_figures_differ():
    tiny = catalogue(TINY)
    protocol = tiny.protocols["tiny"]
    plus, full, tied, softmax = (
        tiny.trial(name, protocol, 0) for name in ("plus", "full", "tied", "softmax")
    )
    assert plus.network_key == full.network_key == tied.network_key != softmax.network_key
    assert plus.network_key != tiny.trial("plus", protocol, 1).network_key
    assert len({each.key for each in (plus, full, tied)}) == 3


def test_an_ensemble_needs_the_networks_of_its_members():
    tiny = catalogue(TINY)
    protocol = tiny.protocols["tiny"]
    pair = tiny.trial("pair", protocol, 1)
    assert [each.seed for each in pair.members] == [2, 3]
    members = {tiny.trial("softmax", protocol, seed).network_key for seed in (2, 3)}
    assert pair.networks == members


def test_a_protocol_may_have_a_learning_rate_for_a_method():
    tiny = catalogue(TINY)
    plain = tiny.protocols["tiny"]
    slower = msgspec.structs.replace(plain, rates={"softmax": 1e-5, "edl+": 2e-5})
    expected = {"softmax": 1e-5, "temperature": 1e-5, "full": 2e-5, "full-pair": 2e-5}
    for label, rate in expected.items():
        assert slower.training_of(tiny.method(label))["learning_rate"] == rate
        trials = (Trial(each, tiny.method(label), 0) for each in (slower, plain))
        assert len({trial.key for trial in trials}) == 2
    assert slower.training_of(tiny.method("fisher")) == plain.training
