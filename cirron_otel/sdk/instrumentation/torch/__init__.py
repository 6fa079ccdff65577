"""Record the tree of a PyTorch training loop with hooks that can be removed."""
