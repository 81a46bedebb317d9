"""`METHODS` and `NETWORKS` contain every file of their packages, with what tables and pages need."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import daedl
from daedl import methods, networks
from daedl.methods import METHODS, Method
from daedl.networks import NETWORKS

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
# Modules with base classes and helpers instead of a method or network.
SHARED_METHODS = {
    "base",
    "density_aware",
    "ensembled",
    "fitted",
    "gaussians",
    "latent",
    "post_hoc",
    "table",
}
SHARED_NETWORKS = {"base", "depths", "feature_module", "headed"}


def modules(package):
    folder = Path(package.__file__).parent
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def defined_in(package, module, base):
    loaded = importlib.import_module(f"{package.__name__}.{module}")
    return [
        value
        for value in vars(loaded).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == loaded.__name__
    ]


@pytest.mark.parametrize("module", modules(methods))
def test_every_method_module_defines_one_named_method(module):
    named = [each for each in defined_in(methods, module, Method) if "name" in vars(each)]
    assert len(named) == (0 if module in SHARED_METHODS else 1)
    for method in named:
        assert METHODS[method.name] is method
        assert getattr(methods, method.__name__) is method


def test_no_other_methods_and_networks_are_listed():
    assert len(METHODS) == len(set(modules(methods)) - SHARED_METHODS)
    assert len(NETWORKS) == len(set(modules(networks)) - SHARED_NETWORKS)
    assert list(METHODS) == sorted(METHODS)


@pytest.mark.parametrize("module", sorted(set(modules(networks)) - SHARED_NETWORKS))
def test_every_network_module_defines_one_listed_network(module):
    (network,) = defined_in(networks, module, networks.Network)
    assert NETWORKS[network.__name__] is network


@pytest.mark.parametrize("name", METHODS)
def test_every_method_states_title_paper_and_limitations(name):
    method = METHODS[name]
    own = vars(method)
    assert method.title
    assert method.paper
    assert method.caveats
    assert method.published_training
    assert method.extra_cost
    assert method.__doc__
    # Inherited attributes would describe another method.
    assert {"title", "caveats"} <= set(own)


def test_titles_are_unique():
    titles = [method.title for method in METHODS.values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_row_and_a_section_on_the_page(name):
    page = PAGE.read_text("utf-8")
    assert page.count(f"\n| [`{name}`](#") == 1
    assert page.count(f"\n## {name} ({METHODS[name].__name__})\n") == 1


NEW_METHOD = '''
from dataclasses import dataclass
from daedl.methods.edl import EDL

@dataclass(frozen=True, kw_only=True)
class Mine(EDL):
    """A new method."""
    name = "mine"
'''
NEW_NETWORK = '''
from daedl.networks.mlp import MLP

class Mine(MLP):
    """A new network."""
'''
USE = """
from daedl import Classifier, networks
model = Classifier(networks.build("Mine", in_features=2, num_classes=3), "mine")
print(model.method.title, type(model.network).__name__)
"""


def test_new_file_is_enough_for_a_new_method_and_a_new_network(tmp_path):
    package = tmp_path / "daedl"
    shutil.copytree(Path(daedl.__file__).parent, package)
    (package / "methods" / "mine.py").write_text(NEW_METHOD)
    (package / "networks" / "mine.py").write_text(NEW_NETWORK)
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["MINE", "Mine"], done.stderr
