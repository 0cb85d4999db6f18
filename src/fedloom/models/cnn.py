"""Convolutional models for small images.

ReLU comes after max-pooling: the two commute, gradients included, and there it has a quarter of the work.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.errors import FedloomError
from fedloom.models import initial
from fedloom.models.layers import check_choice, check_sizes, color_images, gray_images, max_pool_same

Init = Literal["keras", "torch"]


class EmnistCNN(nn.Module):
    """The EMNIST CNN of Reddi et al. (2020) and Charles et al. (2021); with 10 classes FedGLAD's MNIST CNN (2023).

    28 x 28 x 1, 3x3 convolution to 32, 3x3 convolution to 64 (both without padding), 2x2 max-pooling, dropout 0.25,
    dense 128, dropout 0.5, dense `classes`; 1,206,590 parameters with 62 classes, 1,199,882 with 10.
    Reddi's table names ReLU after the second convolution only: his code has it after both and after the dense layer,
    and so has this. `init="keras"`, theirs: Glorot normal kernels, zero biases; `init="torch"`: PyTorch's defaults,
    which FedGLAD's code used.

    >>> sum(leaf.numel() for leaf in EmnistCNN().parameters())
    1206590
    """

    def __init__(self, classes: int = 62, init: Init = "keras") -> None:
        super().__init__()
        check_sizes("EmnistCNN", classes=classes)
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(9216, 128)
        self.out = nn.Linear(128, classes)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        _draw("EmnistCNN", self, init)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(gray_images("EmnistCNN", x, 28)))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.hidden(self.dropout1(x).flatten(1)))
        logits: Tensor = self.out(self.dropout2(x))
        return logits


class MnistCNN(nn.Module):
    """The MNIST CNN of McMahan et al. (2017), which FedAdp uses for MNIST and Fashion-MNIST (Wu and Wang 2021).

    28 x 28 x 1, 5x5 convolution to 32, 2x2 max-pooling, 5x5 convolution to 64, 2x2 max-pooling, dense 512, dense
    `classes`, ReLU between; convolutions keep the size (SAME); 1,663,370 parameters with 10 classes. FedAdp's footnote
    has a first dense layer of 1024 x 512, which `padding="valid"` gives (582,026 parameters), but also this total,
    which SAME gives: the total is followed, and there is no ReLU after the last layer. Neither paper says how it
    starts: `init="keras"` is TensorFlow Federated's port (Glorot normal kernels, zero biases), `init="torch"`
    PyTorch's default, in which FedAdp's experiments were written.

    >>> sum(leaf.numel() for leaf in MnistCNN().parameters())
    1663370
    """

    def __init__(self, classes: int = 10, init: Init = "keras", padding: Literal["same", "valid"] = "same") -> None:
        super().__init__()
        check_sizes("MnistCNN", classes=classes)
        check_choice("MnistCNN padding", padding, ("same", "valid"))
        edge, side = (2, 7) if padding == "same" else (0, 4)
        self.conv1 = nn.Conv2d(1, 32, 5, padding=edge)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=edge)
        self.hidden = nn.Linear(64 * side * side, 512)
        self.out = nn.Linear(512, classes)
        _draw("MnistCNN", self, init)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(gray_images("MnistCNN", x, 28)), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        logits: Tensor = self.out(F.relu(self.hidden(x.flatten(1))))
        return logits


class Cifar10CNN(nn.Module):
    """The CIFAR-10 CNN of TensorFlow's tutorial, used by McMahan et al. (2017) and Hsu et al. (2019).

    `size` x `size` x 3, 5x5 convolution to 64, 3x3 max-pooling with stride 2, normalisation, 5x5 convolution to 64,
    normalisation, 3x3 max-pooling with stride 2, dense 384, dense 192, dense `classes`; ReLU after every layer but the
    last; convolutions and pooling pad as SAME. 1,068,298 parameters with the tutorial's 24 x 24 crops (McMahan's "about
    10^6"), 1,756,426 with 32 x 32.

    `norm="lrn"`, the tutorial's: x / (1 + 0.001 / 9 * s)^0.75, s the sum of squares over the nine nearest channels.
    Truncated normal kernels with std 0.05 (convolutions), 0.04 (hidden), 1/192 (output); biases 0, 0.1,
    0.1, 0.1, 0. Its weight decay is `fedloom.models.penalty.cifar10_cnn()`.

    `norm="batch"`, the default of Flower's reproduction of Hsu et al.: batch norm (momentum 0.99, epsilon 0.001 in
    Keras's words), pooling without padding, Glorot uniform kernels, zero biases; 1,388,042 parameters with 32 x 32
    images, 798,218 with 24 x 24. It reaches less: about 74 % where the paper's central training reaches 86 %.

    >>> sum(leaf.numel() for leaf in Cifar10CNN().parameters())
    1068298
    """

    def __init__(self, size: int = 24, norm: Literal["lrn", "batch"] = "lrn", classes: int = 10) -> None:
        super().__init__()
        check_sizes("Cifar10CNN", size=size, classes=classes)
        check_choice("Cifar10CNN norm", norm, ("lrn", "batch"))
        self.size = size
        if norm == "lrn":
            side = -(-size // 4)
        else:
            if size < 7:
                raise FedloomError(f"Cifar10CNN size: expected at least 7 with norm='batch', got {size}")
            side = ((size - 1) // 2 - 1) // 2
        self.conv1 = nn.Conv2d(3, 64, 5, padding=2)
        self.norm1 = _normalisation(norm)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.norm2 = _normalisation(norm)
        self.hidden1 = nn.Linear(64 * side * side, 384)
        self.hidden2 = nn.Linear(384, 192)
        self.out = nn.Linear(192, classes)
        self.padded = norm == "lrn"
        if norm == "lrn":
            _tutorial(self)
        else:
            initial.kernels_(self, nn.init.xavier_uniform_)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self._pool(self.conv1(color_images("Cifar10CNN", x, self.size))))
        x = F.relu(self.conv2(self.norm1(x)))
        x = self._pool(self.norm2(x))
        x = F.relu(self.hidden2(F.relu(self.hidden1(x.flatten(1)))))
        logits: Tensor = self.out(x)
        return logits

    def _pool(self, x: Tensor) -> Tensor:
        return max_pool_same(x, 3, 2) if self.padded else F.max_pool2d(x, 3, 2)


def _normalisation(norm: str) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(64, eps=1e-3, momentum=0.01)
    return nn.LocalResponseNorm(9, alpha=0.001)  # times the mean of nine squares: 0.001 / 9 times TensorFlow's sum


def _tutorial(model: Cifar10CNN) -> None:
    layers = (model.conv1, 0.05, 0.0), (model.conv2, 0.05, 0.1), (model.hidden1, 0.04, 0.1), (model.hidden2, 0.04, 0.1)
    for layer, std, bias in (*layers, (model.out, 1 / 192, 0.0)):
        initial.truncated_normal_(layer.weight, std)
        nn.init.constant_(layer.bias, bias)  # type: ignore[arg-type]


def _draw(name: str, model: nn.Module, init: str) -> None:
    check_choice(f"{name} init", init, ("keras", "torch"))
    if init == "keras":
        initial.kernels_(model, initial.glorot_normal_)
