"""Imported ahead of Keras: Keras runs on torch."""

import os

os.environ["KERAS_BACKEND"] = "torch"
