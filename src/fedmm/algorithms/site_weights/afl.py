"""AFL, agnostic federated learning: the worst mixture of the clients instead of their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.algorithms.site_weights.agnostic import AgnosticWeights
from fedmm.core.algorithm import LocalSteps


@dataclass(frozen=True)
class AFL(AgnosticWeights, FedAvgGDA):
    """Descent in omega on the clients' weighted sum, and ascent in the weights (Mohri, Sivek and Suresh, 2019).

    ===================  ======  ====================
    argument             symbol  meaning
    ===================  ======  ====================
    lr_min               eta_1   step size for omega
    lr_max               eta_2   step size for psi
    local_steps          M_i     local steps per round; 1 in the paper
    server_lr                    how far the server goes from z_0 to the mean; the paper's rule is 1
    lr_weights           gamma   step size of the clients' weights
    regulariser                  of the weights: ``none``, as in the paper, ``chi_square`` or ``kl``
    regulariser_weight   s       how much it counts
    (state)              lambda  ``weights`` of the server, one for each client: 1 / N at the start
    ===================  ======  ====================

    client:  M_i times  z <- z - eta N lambda_i F_i(z),  from z_0;  upload z_i and f_i(z_0)
    server:  z_0 <- mean of z_i;  lambda <- the point of the simplex nearest to lambda + gamma f(z_0)

    The paper has only omega and one step per round; this library adds psi, more steps, the regularisers (their rules
    are in ``AgnosticWeights``) and (N / m) f_i for the m clients that take part. With more than one local step it does
    not converge to the saddle, like FedAvgGDA; ``fedmm_agnostic`` has duals to prevent this.
    """

    name: ClassVar[str] = "afl"
    summary: ClassVar[str] = (
        "the worst mixture of the clients: the server raises the weights of clients with large losses (AFL)"
    )

    local_steps: LocalSteps = 1
