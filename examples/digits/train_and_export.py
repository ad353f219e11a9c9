"""Train a small digit classifier and export it with and without the XNNPACK delegate.

Needs torch, executorch and scikit-learn. Writes next to itself:

    digits.pte          portable kernels only
    digits_xnnpack.pte  the same network, delegated
    digits_test.npz     images (uint8, 0 to 16) and labels that training never saw
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).resolve().parent
EPOCHS = 60
BATCH = 64
BRIGHTEST = 16  # the data set counts ink in sixteenths


class DigitNet(nn.Module):
    """Two convolutions and a linear layer: 8x8 grey images to 10 scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def to_input(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images.astype(np.float32) / BRIGHTEST).unsqueeze(1)


def train(net: DigitNet, images: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    steps = EPOCHS * (-(-len(images) // BATCH))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    net.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    net.eval()


def accuracy(net: DigitNet, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return (net(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    train_images, test_images, train_labels, test_labels = train_test_split(
        digits.images.astype(np.uint8),
        digits.target,
        test_size=0.25,
        random_state=0,
        stratify=digits.target,
    )
    net = DigitNet()
    train(net, to_input(train_images), torch.from_numpy(train_labels))
    score = accuracy(net, to_input(test_images), torch.from_numpy(test_labels))
    print(f"accuracy on {len(test_labels)} held-out images: {score:.2%}")

    example = (to_input(test_images[:1]),)
    for name, partitioners in (("digits", []), ("digits_xnnpack", [XnnpackPartitioner()])):
        lowered = to_edge_transform_and_lower(
            torch.export.export(net, example), partitioner=partitioners
        )
        (HERE / f"{name}.pte").write_bytes(lowered.to_executorch().buffer)
    np.savez_compressed(HERE / "digits_test.npz", images=test_images, labels=test_labels)


if __name__ == "__main__":
    main()
