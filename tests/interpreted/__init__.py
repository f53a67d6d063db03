"""Kernels of our own without a GPU: run by Triton's interpreter, and compiled for a GPU that is not there."""
