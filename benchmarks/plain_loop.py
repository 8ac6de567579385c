"""The baseline: FedMM as a researcher would write it, a plain eager PyTorch loop over clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Loss = Literal["dann", "cdan", "mdd"]


class PlainNet(nn.Module):
    def __init__(self, features: nn.Module, task_head: nn.Module, adversary: nn.Module, loss: Loss = "dann") -> None:
        super().__init__()
        self.features = features
        self.task_head = task_head
        self.adversary = adversary
        self.loss = loss

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x).flatten(1)
        logits = self.task_head(features)
        if self.loss == "cdan":
            features = torch.bmm(logits.softmax(dim=1).unsqueeze(2), features.unsqueeze(1)).flatten(1)
        return logits, self.adversary(features)

    def domain_loss(self, logits: Tensor, adversary: Tensor, source: bool) -> Tensor:
        if self.loss != "mdd":
            domain = torch.full((len(logits),), 0 if source else 1, device=logits.device)
            return cross_entropy(adversary, domain)
        choice = logits.argmax(dim=1)
        if source:
            return cross_entropy(adversary, choice)
        p = adversary.softmax(dim=1).gather(1, choice.unsqueeze(1))
        return -torch.log(1.00001 - p).mean()


@dataclass
class PlainClient:
    x: Tensor
    y: Tensor | None
    dual: list[Tensor]


def plain_fedmm_round(
    net: PlainNet, server: list[Tensor], clients: list[PlainClient], *, lr: float, mu: float, steps: int, batch: int
) -> list[Tensor]:
    """Run a round of FedMM (nu = 1); return the server's next weights. Clients without labels are target-only."""
    signs = [-1.0 if name.startswith("adversary") else 1.0 for name, _ in net.named_parameters()]
    parameters = list(net.parameters())
    uploads = []
    for client in clients:
        with torch.no_grad():
            for p, p_0 in zip(parameters, server, strict=True):
                p.copy_(p_0)
        for _ in range(steps):
            index = torch.randint(len(client.x), (batch,), device=client.x.device)
            logits, adversary = net(client.x[index])
            loss = -net.domain_loss(logits, adversary, client.y is not None)
            if client.y is not None:
                loss = loss + cross_entropy(logits, client.y[index])
            net.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for p, p_0, sign, dual in zip(parameters, server, signs, client.dual, strict=True):
                    gradient = torch.zeros_like(p) if p.grad is None else sign * p.grad
                    p.sub_(lr * (gradient + mu * (p - p_0) + dual))
        with torch.no_grad():
            for p, p_0, dual in zip(parameters, server, client.dual, strict=True):
                dual.add_(mu * (p - p_0))
            uploads.append([p + dual / mu for p, dual in zip(parameters, client.dual, strict=True)])
    return [torch.stack(column).mean(dim=0) for column in zip(*uploads, strict=True)]


def plain_start(net: PlainNet, clients: list[tuple[Tensor, Tensor | None]]) -> tuple[list[Tensor], list[PlainClient]]:
    """Return the server's initial weights, and the clients with their duals at 0."""
    server = [p.detach().clone() for p in net.parameters()]
    return server, [PlainClient(x, y, [torch.zeros_like(p) for p in server]) for x, y in clients]
