"""Ensembles of separately trained classifiers."""

import copy
from collections.abc import Sequence

from daedl import methods, networks
from daedl.classifier import Classifier
from daedl.model_file import Parts


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
    fitted = [each.fitted for each in copies]
    state = None if fitted[0] is None else methods.FittedMembers(fitted)
    joined = Parts(network, method, members[0].class_names, members[0].preprocess, state)
    return Classifier.from_parts(joined).eval()
