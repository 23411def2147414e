"""What benchmarks with baselines in PyTorch have in common. The baselines run in a process of their own,
which ends before the daemon or the kernel starts: two processes would share the time of the GPU.
"""

import os
import sys


def import_torch(program):
    """Returns torch, for the GPU that the tests use. Ends `program` with a message if that fails."""
    try:
        import torch
    except ImportError as error:
        sys.exit("{}: the baselines need torch: {}. Fix: run this with a Python that has PyTorch with "
                 "CUDA".format(program, error))
    if not torch.cuda.is_available():
        sys.exit("{}: torch {} has no GPU. Fix: use a build of PyTorch with CUDA for this driver".format(
            program, torch.__version__))
    device = os.environ.get("RESIDENT_TEST_DEVICES", "0")
    torch.cuda.set_device(int(device) if device.isdigit() else 0)
    return torch


def versions(torch):
    return "torch {}, CUDA {}, {}".format(torch.__version__, torch.version.cuda,
                                          torch.cuda.get_device_name())
