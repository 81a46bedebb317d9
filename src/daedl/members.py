"""Ensembles of separately trained classifiers."""

import copy
from collections.abc import Sequence

from daedl import methods, networks
from daedl.classifier import Classifier
from daedl.spectral import normalization, remove_spectral_norm


def ensemble(members: Sequence[Classifier]) -> Classifier:
    """Combines copies of trained classifiers into one that averages their predictions.

    All members must have the same method, network architecture, preprocessing and class names; see
    `daedl.methods.Ensemble`.
    """
    if len(members) < 2 or not all(isinstance(each, Classifier) for each in members):
        raise ValueError(
            f"{len(members)} members; expected at least two trained classifiers: pass a list of them"
        )
    for aspect in (
        lambda each: each.method,
        lambda each: (type(each.network.plain).__name__, each.network.arguments),
        lambda each: each.class_names,
        lambda each: each.preprocess,
        lambda each: each.fitted is None,
    ):
        different = [each for each in members if aspect(each) != aspect(members[0])]
        if different:
            raise ValueError(
                f"members differ: {aspect(members[0])} and {aspect(different[0])}; expected the same method, "
                "network architecture, preprocessing and class names, and all or none fitted: train all "
                "members with the same settings"
            )
    copies = [copy.deepcopy(each) for each in members]
    method = methods.Ensemble(member=members[0].method, size=len(members))
    network = networks.Members([each.network for each in copies])
    joined = Classifier(network, method, members[0].class_names, members[0].preprocess)
    if normalization(members[0].network) is None:
        # Classifier() normalised the members again, which changed their weights: restore them.
        remove_spectral_norm(joined.network)
        given = networks.Members([copy.deepcopy(each.network) for each in members])
        joined.network.load_state_dict(given.state_dict())
    if members[0].fitted is not None:
        joined.fitted = methods.FittedMembers([each.fitted for each in copies])
    return joined.eval()
