"""What the algorithms are to each other, on random strongly-convex-strongly-concave games."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import Game, all_counted, games

from fedmm import FedAvgGDA, FedMM, FedProxGDA, FedSGDA, ScaffoldGDA

rates = st.floats(1e-3, 0.05)
penalties = st.floats(0.1, 5.0)
steps = st.integers(1, 6)
rounds = st.integers(1, 5)


@given(games, rates, rates, rounds)
def test_fedavg_gda_with_one_local_step_is_fedsgda_to_the_bit(game: Game, eta1: float, eta2: float, t: int) -> None:
    one_step = game.play(FedAvgGDA(eta1, eta2, local_steps=1), t)
    assert torch.equal(one_step.z, game.play(FedSGDA(eta1, eta2), t).z)


@given(games, rates, rates, steps, rounds)
def test_fedprox_gda_without_penalty_is_fedavg_gda_to_the_bit(
    game: Game, eta1: float, eta2: float, m: int, t: int
) -> None:
    unheld = game.play(FedProxGDA(eta1, eta2, 0.0, 0.0, local_steps=m), t)
    assert torch.equal(unheld.z, game.play(FedAvgGDA(eta1, eta2, local_steps=m), t).z)


@given(games, st.tuples(rates, rates, penalties, penalties), steps, st.floats(0.0, 1.0))
def test_fedmm_moves_twice_as_far_as_fedprox_gda_in_the_first_round(
    game: Game, etas_and_mus: tuple[float, float, float, float], m: int, eta3: float
) -> None:
    # The duals start at 0, so both take the same local steps; then dual_i = mu (z_i - z_0), and the upload is
    # z_i + (eta3^0 / mu) dual_i = z_0 + 2 (z_i - z_0). The start is z_0 = 0.
    prox = game.play(FedProxGDA(*etas_and_mus, local_steps=m), 1)
    fedmm = game.play(FedMM(*etas_and_mus, dual_decay=eta3, local_steps=m), 1)
    torch.testing.assert_close(fedmm.z, 2.0 * prox.z, rtol=1e-12, atol=0)


@given(games, rates, rates, steps)
def test_scaffold_gda_is_fedavg_gda_in_the_first_round(game: Game, eta1: float, eta2: float, m: int) -> None:
    scaffold = game.play(ScaffoldGDA(eta1, eta2, local_steps=m), 1)
    torch.testing.assert_close(scaffold.z, game.play(FedAvgGDA(eta1, eta2, local_steps=m), 1).z, rtol=1e-12, atol=0)


@given(games, rates, rates, steps, rounds)
def test_scaffolds_server_control_is_the_mean_of_the_clients(
    game: Game, eta1: float, eta2: float, m: int, t: int
) -> None:
    # Both start at 0 and the server adds the mean of the clients' changes.
    state = game.play(ScaffoldGDA(eta1, eta2, local_steps=m), t)
    own = torch.stack([client["control"] for client in state.clients.values()]).mean(0)
    torch.testing.assert_close(state.server["control"], own, rtol=1e-9, atol=1e-10)


@given(games, rates, steps, st.floats(0.2, 3.0))
def test_a_server_rate_stretches_the_servers_step(game: Game, eta: float, m: int, server_lr: float) -> None:
    plain = game.play(FedAvgGDA(eta, eta, local_steps=m), 1)
    for kind in (FedAvgGDA, ScaffoldGDA):
        stretched = game.play(kind(eta, eta, local_steps=m, server_lr=server_lr), 1)
        torch.testing.assert_close(stretched.z, server_lr * plain.z, rtol=1e-9, atol=1e-12)


@given(games, penalties, penalties, rounds)
def test_fedmms_mean_dual_is_what_moves_the_server_beyond_the_mean_point(
    game: Game, mu1: float, mu2: float, t: int
) -> None:
    # With eta3 = 1, one more round of one vanishing local step sends z_i = z_0: the server then moves by
    # mean dual_i / mu and nothing else.
    algorithm = FedMM(1e-3, 1e-3, mu1, mu2, local_steps=2)
    before = game.play(algorithm, t)
    mean_dual = torch.stack([client["dual"] for client in before.clients.values()]).mean(0)
    c = algorithm.coefficients(game.layout, t, t + 1)
    uploads = [algorithm.finish(before.z, before.server, own, c)[0]["z"] for own in before.clients.values()]
    came = all_counted(algorithm, {"z": torch.stack(uploads)}, before.server)
    after = algorithm.server_update(before.server, came, c)
    torch.testing.assert_close(after["z"] - before.z, mean_dual / c.penalty, rtol=1e-9, atol=1e-12)


@given(games, st.tuples(rates, rates, penalties, penalties), steps, st.floats(0.0, 1.0), rounds)
def test_fedmm_is_the_papers_box(
    game: Game, etas_and_mus: tuple[float, float, float, float], m: int, eta3: float, t: int
) -> None:
    # Clients that upload z_i + (eta3^t / mu) dual_i and a server that takes the mean, as Algorithm 3 is printed.
    algorithm = FedMM(*etas_and_mus, dual_decay=eta3, local_steps=m)
    z_0 = torch.cat(game.start)
    duals = [torch.zeros_like(z_0) for _ in game.clients]
    for number in range(t):
        c = algorithm.coefficients(game.layout, number, t)
        uploads = []
        for i, client in enumerate(game.clients):
            z = z_0
            for _ in range(m):
                z = z - c.lr * (client.field(z) + c.penalty * (z - z_0) + duals[i])
            duals[i] = duals[i] + c.penalty * (z - z_0)
            uploads.append(z + eta3**number / c.penalty * duals[i])
        z_0 = torch.stack(uploads).mean(0)
    state = game.play(algorithm, t)
    torch.testing.assert_close(state.z, z_0, rtol=1e-10, atol=1e-12)
    for own, dual in zip(state.clients.values(), duals, strict=True):
        torch.testing.assert_close(own["dual"], dual, rtol=1e-10, atol=1e-11)


@given(games, st.tuples(rates, rates, penalties, penalties), steps, rounds)
def test_fedmms_server_knows_the_mean_dual(
    game: Game, etas_and_mus: tuple[float, float, float, float], m: int, t: int
) -> None:
    state = game.play(FedMM(*etas_and_mus, local_steps=m), t)
    own = torch.stack([client["dual"] for client in state.clients.values()]).mean(0)
    torch.testing.assert_close(state.server["mean_dual"], own, rtol=1e-9, atol=1e-11)
