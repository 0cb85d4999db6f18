"""The workloads' models and loss for every runner on PyTorch, ours among them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from workloads import Arrays, Workload


class CNN(nn.Module):
    """Reddi et al.'s EMNIST CNN: 1,206,590 parameters."""

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(9216, 128)
        self.out = nn.Linear(128, 62)
        self.dropout1 = nn.Dropout(0.25 if dropout else 0.0)
        self.dropout2 = nn.Dropout(0.5 if dropout else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.hidden(self.dropout1(x).flatten(1)))
        return self.out(self.dropout2(x))


class Regression(nn.Module):
    """Multinomial logistic regression: 7,850 parameters."""

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.out = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class LSTM(nn.Module):
    """Reddi et al.'s Shakespeare LSTM, with both of PyTorch's biases: scores (batch, time, 90)."""

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(90, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.out = nn.Linear(256, 90)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(x))[0])


MODELS = {"cnn": CNN, "regression": Regression, "lstm": LSTM}


def model(workload: Workload, device: str = "cpu") -> nn.Module:
    """The workload's model with the initial parameters all peers begin with.

    On a GPU rounds are timed in TensorFloat-32, as ours are, and compared in float32.
    """
    timed = workload.dropout
    torch.set_float32_matmul_precision("high" if timed else "highest")
    torch.backends.cudnn.allow_tf32 = timed
    module = MODELS[workload.model](workload.dropout)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in workload.initial().items()})
    return module.to(device)


def tensors(workload: Workload, folder: Path, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """The workload's features and targets, whole, on the device."""
    x, y = workload.load(folder)
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def loss(scores: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy over a batch, and over the characters in it."""
    return F.cross_entropy(scores.flatten(0, -2), y.flatten())


def arrays(module: nn.Module) -> Arrays:
    """The module's parameters, for the comparison."""
    return {name: leaf.detach().cpu().numpy().copy() for name, leaf in module.state_dict().items()}
