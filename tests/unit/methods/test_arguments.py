"""Arguments of methods: those that identify figures, and those of earlier model files."""

import hashlib
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from daedl import methods
from daedl.methods import DAEDL, DDU, Ensemble, Mahalanobis, Retrofit
from daedl.methods.daedl import PAPER


def digest(method):
    text = json.dumps(method.arguments(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


WITHOUT_TRAINING = {name: value for name, value in PAPER.items() if name != "spectral"}
# Computed before rank, normalize_features and temperature existed; the defaults were the paper's settings.
BEFORE = {
    DAEDL.as_published(): "6086cf5b609fb3e0",
    DAEDL.as_published(leave_one_out=True): "5c480132cd2dbf48",
    Retrofit(**WITHOUT_TRAINING): "74047c97a7b8d752",
    DDU(): "463a4dcdfd557ef3",
    Mahalanobis(): "463a4dcdfd557ef3",
}


@pytest.mark.parametrize("method", BEFORE, ids=str)
def test_arguments_of_earlier_figures_are_unchanged(method):
    assert digest(method) == BEFORE[method]


@pytest.mark.parametrize("method", [DAEDL, Retrofit, DDU, Mahalanobis])
def test_later_settings_are_arguments_unless_they_are_neutral(method):
    normalized = method(normalize_features=True)
    assert normalized.arguments() == {**method().arguments(), "normalize_features": True}
    assert methods.rebuild(method.name, normalized.arguments()) == normalized
    assert methods.rebuild(method.name, method().arguments()) == method()


def test_later_settings_of_base_classes_are_added():
    @dataclass(frozen=True, kw_only=True)
    class Later(DAEDL):
        since: ClassVar = {"added": 1}
        added: int = 2

    assert Later.since == {**DAEDL.since, "added": 1}
    assert Later().arguments() == {**DAEDL().arguments(), "added": 2}
    assert Later(added=1).arguments() == DAEDL().arguments()


def test_files_that_lack_a_setting_do_not_follow_its_default():
    """They were written when features were not normalised and probabilities not calibrated."""
    published = DAEDL.as_published()
    written = published.arguments()
    assert not {"rank", "normalize_features", "temperature"} & set(written)
    assert methods.rebuild("daedl", written) == published
    assert methods.build("daedl", **written) != published
    ensemble = Ensemble(member=published)
    assert methods.rebuild("ensemble", ensemble.arguments()) == ensemble
