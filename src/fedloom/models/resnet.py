"""Residual networks for CIFAR images."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.errors import FedloomError
from fedloom.models import initial
from fedloom.models.layers import check_choice, check_sizes, color_images, max_pool_same, same


class ResNet18GN(nn.Module):
    """ResNet-18 with group norm, for CIFAR-100: Reddi et al. (2020), Charles et al. (2021).

    Pre-activation (He et al. 2016b): 7x7 convolution to 64 with stride 2, norm, ReLU, 3x3 max-pooling with stride 2,
    four stages of two basic blocks (64, 128, 256, 512 channels), norm, ReLU, mean over positions, dense `classes`. The
    first block starts without norm and ReLU, which the stem has done; where the channels change, the shortcut is a 1x1
    convolution and a norm. Padding is SAME, and convolutions have no bias. 11,227,812 parameters with 100 classes. He
    normal kernels, N(0, 0.01^2) for the dense one, zero bias.

    The papers say ResNet-18 with two groups. `variant="tff"` is their code: no block has a stride, so that maps stay 6
    x 6 from the stem on (24 x 24 crops); group norm's epsilon is 0.001, and the loss includes
    `fedloom.models.penalty.resnet18_gn()`. `variant="standard"` halves the map at the start of the second, third and
    fourth stage, as ResNet-18 does. Two accidents are not followed: tensorflow_addons 0.6, which Reddi's runs may have
    used, put rows of the image into groups where it should have been channels; and later versions of the code gave
    every initialiser the same seed, so that layers of one shape started equal.

    >>> sum(leaf.numel() for leaf in ResNet18GN().parameters())
    11227812
    """

    def __init__(self, classes: int = 100, variant: Literal["tff", "standard"] = "tff", groups: int = 2) -> None:
        super().__init__()
        check_sizes("ResNet18GN", classes=classes, groups=groups)
        check_choice("ResNet18GN variant", variant, ("tff", "standard"))
        if 64 % groups:
            raise FedloomError(f"ResNet18GN groups: expected a divisor of 64, got {groups}")
        self.stem = nn.Conv2d(3, 64, 7, stride=2, bias=False)
        self.stem_norm = _group_norm(groups, 64)
        self.blocks = nn.Sequential()
        width_in = 64
        for stage, width in enumerate((64, 128, 256, 512)):
            for block in range(2):
                stride = 2 if variant == "standard" and stage > 0 and block == 0 else 1
                first = stage == block == 0
                self.blocks.append(_PreActivation(width_in, width, stride, groups, first))
                width_in = width
        self.norm = _group_norm(groups, 512)
        self.linear = nn.Linear(512, classes)
        initial.kernels_(self, initial.he_normal_)
        nn.init.normal_(self.linear.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(same(color_images("ResNet18GN", x), 7, 2))
        x = max_pool_same(F.relu(self.stem_norm(x)), 3, 2)
        x = F.relu(self.norm(self.blocks(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


class _PreActivation(nn.Module):
    """Norm, ReLU, convolution, twice, added to the input; `first`: without the first norm and ReLU."""

    def __init__(self, width_in: int, width: int, stride: int, groups: int, first: bool) -> None:
        super().__init__()
        self.stride = stride
        self.norm1 = None if first else _group_norm(groups, width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1 if stride == 1 else 0, bias=False)
        self.norm2 = _group_norm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride > 1 or width_in != width:
            self.shortcut = nn.Conv2d(width_in, width, 1, stride, bias=False)
            self.shortcut_norm = _group_norm(groups, width)

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut_norm(self.shortcut(x))
        y = x if self.norm1 is None else F.relu(self.norm1(x))
        y = self.conv1(y if self.stride == 1 else same(y, 3, self.stride))
        y = self.conv2(F.relu(self.norm2(y)))
        return torch.add(kept, y)


def _group_norm(groups: int, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(groups, channels, eps=1e-3)


class ResNet56(nn.Module):
    """ResNet-56 with batch norm, for CIFAR-10: FedGLAD (Yang et al. 2023).

    3x3 convolution to 16, norm, ReLU, three stages of 16, 32 and 64 channels, the second and third starting with
    stride 2, mean over positions, dense `classes`. The paper cites He et al. (2016a): `variant="he"`, nine basic
    blocks a stage, and shortcuts without parameters, which skip every other position and add channels of zeros;
    853,018 parameters. `variant="fedml"` is what its code, FedML's, runs under that name: six bottleneck blocks a
    stage, whose outputs have four times the channels, and 1x1 convolutions with a norm where a shortcut changes shape;
    591,322 parameters. N(0, 2 / fan_out) kernels of convolutions, PyTorch's default for the dense layer.

    Batch norm's running statistics are buffers: they are averaged over clients and never pass a server optimizer.

    >>> sum(leaf.numel() for leaf in ResNet56().parameters())
    591322
    """

    def __init__(self, classes: int = 10, variant: Literal["fedml", "he"] = "fedml") -> None:
        super().__init__()
        check_sizes("ResNet56", classes=classes)
        check_choice("ResNet56 variant", variant, ("fedml", "he"))
        expansion, blocks = (4, 6) if variant == "fedml" else (1, 9)
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential()
        width_in = 16
        for stage, width in enumerate((16, 32, 64)):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                made = _Bottleneck if variant == "fedml" else _Basic
                self.blocks.append(made(width_in, width, stride))
                width_in = width * expansion
        self.linear = nn.Linear(width_in, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(color_images("ResNet56", x))))
        x = self.blocks(x)
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


class _Bottleneck(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.shortcut: nn.Conv2d | None = None
        if stride > 1 or width_in != 4 * width:
            self.shortcut = nn.Conv2d(width_in, 4 * width, 1, stride, bias=False)
            self.shortcut_norm = nn.BatchNorm2d(4 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        kept = x if self.shortcut is None else self.shortcut_norm(self.shortcut(x))
        return F.relu(kept + y)


class _Basic(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, width - width_in
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return F.relu(x + y)
