"""Record Keras 3's training in Keras' own epochs, batches, evaluations and checkpoints."""
