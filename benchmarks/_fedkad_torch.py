"""FedKAD in PyTorch as a first version would be written: windows in memory, a loop over clients, autograd.

Nothing here is tuned, and nothing is made slow on purpose; it is the paper's Algorithm 1 on raw snapshots.
"""

from collections.abc import Sequence

import torch


def snapshots(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, window: int) -> torch.Tensor:
    """Lifted states ``(D, T - W + 1)`` of a stream ``(T, C)``, eq. 4 and 7."""
    z = x.unfold(0, window, 1).transpose(1, 2).reshape(len(x) - window + 1, -1)
    return torch.cat([z, torch.tanh(z @ weight.T + bias)], dim=1).T.contiguous()


def positive_qr(a: torch.Tensor) -> torch.Tensor:
    """Q of a QR decomposition with a positive diagonal of R."""
    q, r = torch.linalg.qr(a)
    return q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0)


class Client:
    """Snapshots, frame and dual of one client."""

    def __init__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, window: int, frame: torch.Tensor
    ):
        phi = snapshots(x, weight, bias, window)
        self.X, self.Y = phi[:, :-1], phi[:, 1:]
        self.P, self.dual = frame.clone(), torch.zeros_like(frame)

    def update(self, Z: torch.Tensor, *, rho: float, eta: float, inner: int, ridge: float) -> torch.Tensor:
        """Eq. 10 and 18 to 20; returns the upload of eq. 16."""
        reduced = self.P.T @ self.X
        gram = reduced @ reduced.T
        gram = gram + ridge * torch.trace(gram) / len(gram) * torch.eye(len(gram))
        Q = torch.linalg.solve(gram, (self.P.T @ self.Y @ reduced.T).T).T
        for _ in range(inner):
            P = self.P.clone().requires_grad_()
            loss = ((self.Y - P @ (Q @ (P.T @ self.X))) ** 2).mean()
            loss = loss + rho / 2 * ((P - Z + self.dual / rho) ** 2).sum()
            (G,) = torch.autograd.grad(loss, P)
            G = G - self.P @ (self.P.T @ G)
            self.P = positive_qr(self.P - eta * G)
        return self.P + self.dual / rho


def fit(
    streams: Sequence[torch.Tensor],
    weight: torch.Tensor,
    bias: torch.Tensor,
    window: int,
    Z: torch.Tensor,
    cohorts: Sequence[Sequence[int]],
    *,
    rho: float = 1.0,
    eta: float = 0.05,
    inner: int = 5,
    ridge: float = 1e-2,
) -> tuple[torch.Tensor, list[Client]]:
    """Algorithm 1 from the shared frame Z; returns the last Z and the clients."""
    clients = [Client(x, weight, bias, window, Z) for x in streams]
    for cohort in cohorts:
        uploads = [clients[k].update(Z, rho=rho, eta=eta, inner=inner, ridge=ridge) for k in cohort]
        Z = torch.stack(uploads).mean(dim=0)
        for k in cohort:
            clients[k].dual = clients[k].dual + rho * (clients[k].P - Z)
    return Z, clients
