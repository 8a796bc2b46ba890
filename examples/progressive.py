"""Progressive resizing in a plain loop: one loader, one optimizer, one learning-rate curve.

python examples/progressive.py DIR        DIR/train has one sub-folder per class
"""

import sys

import torch
from torch import nn

import feedline


def main(root: str, schedule: str = "112x10,160x10,224x10", batch_size: int = 64) -> None:
    """Train a small network on an image folder."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = feedline.ImageFolder(f"{root}/train", transform=feedline.TrainCrop())
    loader = feedline.DataLoader(
        data, batch_size, schedule=schedule, device=device, drop_last=True, num_workers="auto"
    )
    # Any network that accepts images of any size.
    body = nn.Conv2d(3, 64, 7, 4, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, len(data.classes))
    model = nn.Sequential(*body, *head).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    # One learning-rate curve over all steps, independent of the size.
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=loader.total_steps + 1)
    with loader:
        for epoch in range(loader.epochs):
            for images, labels in loader:  # normalised, on the device, at the scheduled size
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                rate.step()
            print(f"epoch {epoch + 1} at {images.shape[-1]} px: loss {loss.item():.3f}")
        loader.why()  # the bottleneck, and what to do about it


if __name__ == "__main__":
    main(*sys.argv[1:3])
