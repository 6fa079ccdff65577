"""The intake journal: requests are on disk before they are acknowledged."""
