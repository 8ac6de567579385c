"""FedMM whose features cannot outrun the adversary: the default of this library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmm.algorithms.fedmm_variants.averaged import AveragedFedMM
from fedmm.core.layout import PerGroup


@dataclass(frozen=True)
class RestrainedFedMM(AveragedFedMM):
    """FedMM on the restrained field: rows that already fool the adversary push the features less.

    A domain loss has no upper bound, so features gain by fooling the adversary further than it can follow, and this is
    how runs of FedMM fail: the domain loss rises far above chance level, and psi takes one step too far. Here a row x
    of domain d has the weight min(1, p(d | x) / share of d) in omega's part of F_i (:class:`fedmm.DANN`,
    ``restrained``); psi's part is unchanged. If the adversary is at chance level every weight is 1, so saddles at which
    the domains match are FedMM's. Objectives whose adversary does not predict domains (``mdd``, ``auc``) are unchanged.

    ============  ================  ====================
    argument      symbol            meaning
    ============  ================  ====================
    lr_min        eta_1             step size for omega
    lr_max        eta_2             step size for psi
    penalty_min   mu_1              penalty on omega's distance to the server's point
    penalty_max   mu_2              penalty on psi's distance to the server's point
    dual_decay    eta_3             the share with which the duals move the server's point is eta_3^t
    local_steps   M_i               local steps per round
    average_rate  kappa             the averaged model moves by max(kappa, 10 / (t + 10)) to z_0; 1 keeps no average
    (state)       lambda_i, beta_i  the two halves of ``dual``, as in FedMM
    (state)       h                 ``mean_dual`` of the server, as in FedMM
    (state)       z_bar             ``average`` of the server, which predicts
    ============  ================  ====================

    client:  as in FedMM, with the restrained F_i
    server:  as in FedMM, and
             z_bar <- z_bar + max(kappa, 10 / (t + 10)) (z_0 - z_bar)
    """

    name: ClassVar[str] = "fedmm_restrained"
    summary: ClassVar[str] = "FedMM with features that cannot run past the adversary: the default"
    restrains: ClassVar[bool] = True

    penalty_min: PerGroup = 2.0
    penalty_max: PerGroup = 2.0
