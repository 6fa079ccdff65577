"""The units, evaluations and phases in the recordings of each producer, as one canonical form."""
