"""Small arrays on their way to a device, sent without waiting for it.

It knows bytes and devices only. Invariant: a call returns before the device has read anything, and what was handed over
may be changed or dropped at once, because the memory that the device reads from is PyTorch's own.
"""

import torch

__all__ = ["copy_to", "to_device"]


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device; itself where it is there already."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def copy_to(place: torch.Tensor, tensor: torch.Tensor) -> None:
    """Overwrite `place` with a tensor of its shape and type that lies in main memory."""
    place.copy_(tensor.pin_memory() if place.is_cuda else tensor, non_blocking=True)
