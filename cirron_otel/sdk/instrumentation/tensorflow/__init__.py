"""Record eager TensorFlow loops, and calls of compiled functions."""
