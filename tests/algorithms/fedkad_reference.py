"""FedKAD in float64 NumPy, written from the equations on raw snapshots: the truth the compiled version is held to."""

import numpy as np


def snapshots(x, weight, bias, window):
    """Lifted states of one gap-free stream as columns, eq. 4 and 7."""
    columns = []
    for t in range(window - 1, len(x)):
        z = np.concatenate([x[s] for s in range(t - window + 1, t + 1)])
        columns.append(np.concatenate([z, np.tanh(weight @ z + bias)]))
    return np.array(columns).T


def operator(frame, X, Y, ridge):
    """Eq. 10 with the ridge relative to the mean eigenvalue."""
    gram = frame.T @ X @ X.T @ frame
    ridge = ridge * np.trace(gram) / len(gram)
    return np.linalg.solve((gram + ridge * np.eye(len(gram))).T, (frame.T @ Y @ X.T @ frame).T).T


def gradient(frame, Q, X, Y):
    """Euclidean gradient of |Y - P Q P'X|^2 / (M D) in every term, unlike the compiled version's."""
    D, M = X.shape
    E = Y - frame @ Q @ frame.T @ X
    return -2 / (M * D) * (E @ X.T @ frame @ Q.T + X @ E.T @ frame @ Q)


def positive_qr(A):
    Q, R = np.linalg.qr(A)
    return Q * np.where(np.diag(R) < 0, -1, 1)


def admm(streams, weight, bias, window, Z, frames, cohorts, *, rho, eta, inner, ridge, tangent=False):
    """Algorithm 1 with partial participation; returns Z, the frames and the duals."""
    data = []
    for x in streams:
        phi = snapshots(x, weight, bias, window)
        data.append((phi[:, :-1], phi[:, 1:]))
    P, duals = [f.copy() for f in frames], [np.zeros_like(f) for f in frames]
    for cohort in cohorts:
        for i in cohort:
            X, Y = data[i]
            Q = operator(P[i], X, Y, ridge)
            for _ in range(inner):
                G = gradient(P[i], Q, X, Y) + rho * (P[i] - Z + duals[i] / rho)
                S = P[i].T @ G
                G = G - P[i] @ ((S + S.T) / 2 if tangent else S)
                P[i] = positive_qr(P[i] - eta * G)
        Z = np.mean([P[i] + duals[i] / rho for i in cohort], axis=0)
        for i in cohort:
            duals[i] = duals[i] + rho * (P[i] - Z)
    return Z, P, duals, data


def scores(x, Z, X, Y, weight, bias, window, *, ridge, cap, horizon, smoothing):
    """Section IV-F at the polar factor of Z."""
    U, _, Vt = np.linalg.svd(Z, full_matrices=False)
    basis = U @ Vt
    Q = operator(basis, X, Y, ridge)
    radius = np.abs(np.linalg.eigvals(Q)).max()
    Q = Q * min(1, cap / radius)
    phi = snapshots(x, weight, bias, window)
    out = np.full(len(x), np.nan)
    for t in range(phi.shape[1] - horizon):
        errors = [
            np.sum((phi[:, t + h] - basis @ np.linalg.matrix_power(Q, h) @ basis.T @ phi[:, t]) ** 2)
            for h in range(1, horizon + 1)
        ]
        out[t + window - 1 + horizon] = np.mean(errors)
    return np.array(
        [
            np.nan if np.isnan(out[t]) else np.nanmean(out[max(0, t - smoothing + 1) : t + 1])
            for t in range(len(out))
        ]
    )
