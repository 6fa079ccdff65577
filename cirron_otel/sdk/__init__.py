"""The SDK: what a training process is, and what it makes of its scopes and marks."""
