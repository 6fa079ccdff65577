"""Hooks into the Trainer of transformers."""
