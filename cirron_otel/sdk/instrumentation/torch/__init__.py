"""Records the tree of a PyTorch training loop, by hooks that can be removed."""
