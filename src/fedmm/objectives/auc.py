"""Deep AUC maximisation (Ying et al., 2016; Liu et al., 2020; Yuan et al., 2021), of the whole curve or its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.objective import AdversaryShape, Objective, Outputs, RowWeights, class_shares
from fedmm.core.projections import ConvexSet, HalfLine
from fedmm.core.validation import flag, fraction, one_of, positive, rate

_UNTRAINED = 0.5
"""An untrained network's prediction: a, b, tau and alpha start at the values that are optimal for it."""


_SMALLEST = 1e-9
"""Lower bound on p (1 - p), which is 0 if all rows are of one class."""


@dataclass(frozen=True)
class AUC(Objective):
    """The area under the ROC curve as a saddle point, so that no client needs pairs of a positive and a negative row.

    Let h be the predicted probability of class 1, p the share of class 1 among all clients' labelled rows, and a, b
    (in omega) and alpha (in psi) three scalars. A row with label y costs

        (1 - p) (h - a)^2 [y = 1] + p (h - b)^2 [y = 0] - p (1 - p) alpha^2, and
        square:  2 (1 + alpha) (p h [y = 0] - (1 - p) h [y = 1])
        margin:  2 alpha (p (1 - p) m + p h [y = 0] - (1 - p) h [y = 1])  with alpha >= 0

    At the saddle a and b are the means of h over class 1 and class 0, and alpha is b - a, or max(0, m + b - a). Over
    pairs of a row x of class 1 and x' of class 0, ``square`` then costs p (1 - p) E[(1 - h(x) + h(x'))^2] minus
    p (1 - p); ``margin`` does not penalise a difference of the means beyond m.

    With max_fpr = beta < 1 only pairs with the highest-scored share beta of the negative rows count, which gives the
    ROC curve up to that false positive rate. tau, in omega, tracks the (1 - beta) quantile of h over all clients' rows
    of class 0: such a row counts 1 / beta times in the cost above if its h is above tau, and not at all otherwise, and
    tau descends p (tau + max(0, h - tau) / beta) [y = 0] (Rockafellar and Uryasev, 2000), whose minimum is the quantile
    whatever the rows of class 1 are. Neither the count nor that loss has a gradient in h: a zero of the field is an
    equilibrium of a game in which tau has its own loss, not a saddle of one function.

    In expectation every term of the network's gradient has the factor p (1 - p), so a rare class makes its steps small.
    Larger rates do not help: a and b, whose curvature at a site with one class is 2 (1 - p) or 2 p, diverge. ``scaled``
    divides the network's gradient by p (1 - p) and leaves those of a, b, tau and alpha unchanged. This is a factor on
    each coordinate that all clients share, so the field has the same zeros.

    form: ``margin`` (AUCM, Yuan et al.) or ``square`` (Ying et al.). margin: m, above 0.
    positive_share: p, at least 0 and below 1; 0 to measure it as the clients' shares of class 1, averaged by weight.
    max_fpr: beta, above 0 and at most 1; 1 for the whole curve, which needs no tau.
    scaled: whether to divide the network's gradient by p (1 - p), so that the same rates suit any p.
    """

    name: ClassVar[str] = "auc"
    summary: ClassVar[str] = (
        "the area under the ROC curve of two classes, for labelled rows, even at sites with one class"
    )
    adapts: ClassVar[bool] = False
    class_count: ClassVar[int | None] = 2

    form: Literal["margin", "square"] = "margin"
    margin: float = 1.0
    positive_share: float = 0.0
    max_fpr: float = 1.0
    scaled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("form", self.form, ("margin", "square"))
        positive("margin", self.margin)
        fraction("positive_share", self.positive_share)
        rate("max_fpr", self.max_fpr)
        flag("scaled", self.scaled)
        require(
            not self.sam_radius, f"sam_radius must be 0 for {self.name}, whose task loss is not minimised by itself"
        )

    @classmethod
    def used_options(cls) -> set[str]:
        return super().used_options() - {"nu", "nu_schedule", "target_loss", "target_weight", "sam_radius"}

    @property
    def needs_class_shares(self) -> bool:
        return not self.positive_share

    @property
    def constraints(self) -> Mapping[str, ConvexSet]:
        return {"adversary": HalfLine()} if self.form == "margin" else {}

    def require_classes(self, classes: int, shares: Sequence[float] | None = None) -> None:
        super().require_classes(classes)
        for label, share in enumerate(shares or ()):
            require(share > 0.0, f"{self.name} needs rows of two classes, and no client holds any of class {label}")

    def adversary_shape(self, features: int, classes: int) -> AdversaryShape:
        alpha = self.margin if self.form == "margin" else 0.0
        return AdversaryShape(1, 1, start=(alpha, *[_UNTRAINED] * (3 if self.max_fpr < 1.0 else 2)))

    def adversary_input(self, features: Tensor, logits: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
        return torch.ones_like(logits[..., :1])

    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        return outputs.logits.new_zeros(domain.shape)

    def task_loss(self, outputs: Outputs, labels: Tensor, weights: RowWeights) -> Tensor:
        if not weights.has_source:
            return weights.task.sum(dim=-1)
        logits = outputs.logits.to(outputs.adversary.dtype)
        positives = (labels == 1).to(logits.dtype)
        negatives = 1.0 - positives
        p = self.positive_share or class_shares(labels, weights, 2)[..., 1:]
        alpha, a, b, *tau = outputs.adversary.unbind(dim=-1)
        h = torch.sigmoid(logits[..., 1] - logits[..., 0])
        if self.scaled:
            share = (torch.ones_like(h) * p * (1.0 - p)).clamp_min(_SMALLEST)
            h = h + (1.0 / share - 1.0) * (h - h.detach())
        counted = negatives * (h > tau[0]) / self.max_fpr if tau else negatives
        spread = (1.0 - p) * (h - a) ** 2 * positives + p * (h - b) ** 2 * counted - p * (1.0 - p) * alpha**2
        order = p * h * counted - (1.0 - p) * h * positives
        if self.form == "square":
            gap = 2.0 * (1.0 + alpha) * order
        else:
            gap = 2.0 * alpha * (p * (1.0 - p) * self.margin + order)
        cost = spread + gap
        if tau:  # the quantile's loss adds a gradient but no value, so that f is the cost of the pairs alone
            cost = cost + p * (negatives - counted) * (tau[0] - tau[0].detach())
        return (cost * weights.task).sum(dim=-1)
