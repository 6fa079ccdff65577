"""Marks from the loggers that a program already uses: TensorBoard, wandb and mlflow."""
