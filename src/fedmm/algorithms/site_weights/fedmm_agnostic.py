"""FedMM for the worst mixture of the clients: AFL's weights at the server, FedMM's duals at the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmm.algorithms.fedmm import FedMM
from fedmm.algorithms.site_weights.agnostic import AgnosticWeights


@dataclass(frozen=True)
class AgnosticFedMM(AgnosticWeights, FedMM):
    """FedMM on N lambda_i f_i, with AFL's weights lambda.

    ===================  ================  ====================
    argument             symbol            meaning
    ===================  ================  ====================
    lr_min               eta_1             step size for omega
    lr_max               eta_2             step size for psi
    penalty_min          mu_1              penalty on omega's distance to the server's point
    penalty_max          mu_2              penalty on psi's distance to the server's point
    dual_decay           eta_3             the share with which the duals move the server's point is eta_3^t
    local_steps          M_i               local steps per round
    lr_weights           gamma             step size of the clients' weights
    regulariser                            of the weights: ``none``, ``chi_square`` or ``kl``
    regulariser_weight   s                 how much it counts
    (state)              lambda_i, beta_i  the two halves of ``dual``, as in FedMM
    (state)              h                 ``mean_dual`` of the server, as in FedMM
    (state)              lambda            ``weights`` of the server, one for each client: 1 / N at the start
    ===================  ================  ====================

    client:  as in FedMM, with N lambda_i F_i in place of F_i;  upload z_i and f_i(z_0)
    server:  as in FedMM;  lambda <- the point of the simplex nearest to lambda + gamma f(z_0)

    A dual converges to -N lambda_i F_i at the saddle, so that clients stay there however many local steps they take,
    whereas AFL's drift apart. This is not from a paper; DRDM (2025) similarly adds client weights to FedDyn's duals.
    """

    name: ClassVar[str] = "fedmm_agnostic"
    summary: ClassVar[str] = (
        "FedMM for the worst mixture of the clients: the server raises the weights of clients with large losses"
    )
