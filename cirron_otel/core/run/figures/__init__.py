"""Figures of a run: folds over blocks of its relations."""
