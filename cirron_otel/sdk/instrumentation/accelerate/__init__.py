"""Hooks into Accelerate, for training loops without a Trainer."""
