"""The targets to which batches can be delivered."""
