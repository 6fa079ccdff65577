"""Delivery of sealed batches to targets, until each target has acknowledged them."""
