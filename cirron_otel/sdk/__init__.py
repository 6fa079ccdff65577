"""The SDK, which runs in a training process and records its scopes, marks and snapshots."""
