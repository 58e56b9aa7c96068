"""Predictions of small networks on UCI regressions: Ridgewalk, deep ensembles in PyTorch, and laplace-torch.

All have one hidden layer of 50 units. Data, splits, scores and Ridgewalk's own methods are those of the study `uci`.
"""

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from ridgewalk.studies import uci
from ridgewalk.studies.uci import Array, Predicted, Settings, Split, UciRow

MEMBERS, UNITS, EPOCHS, BATCH = 5, 50, 400, 32


def _standardised(rows: Split) -> tuple[Array, Array, Array, float, float]:
    centre, spread = rows.x.mean(0), rows.x.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    mean, sd = float(rows.y.mean()), float(rows.y.std())
    return (rows.x - centre) / spread, (rows.y - mean) / sd, (rows.test_x - centre) / spread, mean, sd


def _train(network: Any, loss: Callable[[Any, Any], Any], x: Any, y: Any, epochs: int, decay: float) -> None:
    """Adam on minibatches."""
    import torch

    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            loss(network(x[rows]), y[rows]).backward()
            optimiser.step()
        schedule.step()


def _mlp(inputs: int, outputs: int) -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(inputs, UNITS), torch.nn.ReLU(), torch.nn.Linear(UNITS, outputs))


def deep_ensemble(rows: Split, split: int, epochs: int = EPOCHS) -> Predicted:
    """Five networks with a mean and a variance each, as one Gaussian (Lakshminarayanan et al. 2017)."""
    import torch

    torch.manual_seed(split)
    torch.set_num_threads(1)
    x, y, test, mean, sd = _standardised(rows)
    inputs, targets = (torch.tensor(values, dtype=torch.float32) for values in (x, y))

    def loss(found: Any, wanted: Any) -> Any:
        variance = torch.nn.functional.softplus(found[:, 1]) + 1e-6
        return (0.5 * torch.log(variance) + 0.5 * (wanted - found[:, 0]) ** 2 / variance).mean()

    means, variances = [], []
    for _ in range(MEMBERS):
        network = _mlp(x.shape[1], 2)
        _train(network, loss, inputs, targets, epochs, 1e-4)
        with torch.no_grad():
            found = network(torch.tensor(test, dtype=torch.float32)).double()
        means.append(found[:, 0].numpy())
        variances.append((torch.nn.functional.softplus(found[:, 1]) + 1e-6).numpy())
    centre = np.mean(means, axis=0)
    variance = np.mean(np.array(variances) + np.array(means) ** 2, axis=0) - centre**2
    return uci.gaussian_prediction(rows, mean + sd * centre, sd * np.sqrt(variance))


def laplace_torch(rows: Split, split: int, epochs: int = EPOCHS) -> Predicted:
    """laplace-torch's full Laplace approximation, noise and prior precision by its marginal likelihood."""
    import torch
    from laplace import Laplace

    torch.manual_seed(split)
    torch.set_num_threads(1)
    x, y, test, mean, sd = _standardised(rows)
    inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    network = _mlp(x.shape[1], 1)
    _train(network, torch.nn.functional.mse_loss, inputs, targets, epochs, 1e-4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=256)
    approximation = Laplace(network, "regression", subset_of_weights="all", hessian_structure="full")
    approximation.fit(loader)
    prior, noise = (torch.zeros(1, requires_grad=True) for _ in range(2))
    optimiser = torch.optim.Adam([prior, noise], lr=0.1)
    for _ in range(100):
        optimiser.zero_grad()
        (-approximation.log_marginal_likelihood(prior.exp(), noise.exp())).backward()
        optimiser.step()
    with torch.no_grad():
        centre, variance = approximation(torch.tensor(test, dtype=torch.float32))
    total = variance.reshape(-1).double().numpy() + float(approximation.sigma_noise.detach()) ** 2
    return uci.gaussian_prediction(rows, mean + sd * centre.reshape(-1).double().numpy(), sd * np.sqrt(total))


OURS = {"sample": "Ridgewalk NeuralRegressor()", "laplace": "Ridgewalk, method laplace"}
PEERS: dict[str, tuple[str, Callable[..., Predicted]]] = {
    "deep-ensemble": (f"deep ensemble of {MEMBERS} (PyTorch)", deep_ensemble),
    "laplace-torch": ("laplace-torch, full", laplace_torch),
}
METHODS = (*OURS, *PEERS)
TITLES = OURS | {name: title for name, (title, _) in PEERS.items()}


def measure(name: str, split: int, method: str, settings: Settings, epochs: int) -> UciRow:
    """One method on one split; of Ridgewalk's the second fit is timed, so that nothing is compiled in it."""
    if method in OURS:
        if method == "sample":
            uci.measure(name, split, method, settings)
        return uci.measure(name, split, method, settings)
    rows = uci.read_split(name, split)
    import_module("laplace" if method == "laplace-torch" else "torch")  # seconds of their own
    begun = time.process_time()
    found = PEERS[method][1](rows, split, epochs)
    return uci.score(name, split, method, rows, found, time.process_time() - begun)
