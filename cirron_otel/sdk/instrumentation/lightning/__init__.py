"""Hooks into Lightning: its Trainer, and Fabric."""
