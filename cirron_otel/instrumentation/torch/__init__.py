"""PyTorch: the tree of a training loop, by hooks that are removed again."""
