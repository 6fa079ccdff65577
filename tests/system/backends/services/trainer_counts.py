"""How much the trainer does."""

EPOCHS, STEPS, EVENTS = 2, 3, 300
