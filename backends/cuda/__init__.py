"""NVIDIA GPUs: runtime through torch, kernels of `isoinfer.kernels_cuda`. Nothing is imported until it is chosen."""
