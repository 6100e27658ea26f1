"""The embedded xcfg runtime: Hugging Face models scored with PyTorch on CPU or CUDA."""
