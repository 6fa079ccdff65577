"""Samples of memory, CPU and GPU as marks on the scope that is open in the training thread."""
