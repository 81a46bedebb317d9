"""Selective prediction: thresholds on uncertainty scores with finite-sample guarantees.

Both guarantees hold for new inputs from the distribution of the calibration samples, which must not have
been used for training. They say nothing about OOD images.

Rejection rate. Let s_(1) ≤ … ≤ s_(n) be the scores of n calibration samples and s_(k) the threshold,
k = ⌈(n + 1)(1 − x)⌉. A new image is rejected with probability at most x over the draw of all n + 1 images,
because its rank among them is uniform (split conformal prediction; Vovk et al., 2005). Several scores reject
together: see `rejection._positions`. Where the limit is a maximum that several images share, because a
clipped density score removes all evidence, the density decides between them: scores are ranked
lexicographically.

Error rate. Given s_(k), the k − 1 images below it are independent draws from the images below that threshold,
so the number of errors among them is binomial with the risk of accepted images. Clopper-Pearson upper bounds
at level 1 − δ / m for m fixed values of k hold simultaneously with probability 1 − δ, hence also for the
largest k whose bound is at most y (after Geifman and El-Yaniv, 2017). With two scores, one half of the images
fixes m pairs of thresholds and the other half counts the errors.

A new rule is one subclass of `Target`, in its own file and imported here: model files, exported graphs and
the risk-coverage plot use the methods of `Target` only.
"""

from daedl.selective.conformal import Conformal
from daedl.selective.error import MaxErrorRate
from daedl.selective.rejection import MaxRejectionRate
from daedl.selective.target import On, Target, Thresholds, accepts, choose
from daedl.selective.width import MaxWidth

__all__ = [
    "Conformal",
    "MaxErrorRate",
    "MaxRejectionRate",
    "MaxWidth",
    "On",
    "Target",
    "Thresholds",
    "accepts",
    "choose",
]
