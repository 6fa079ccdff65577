"""Hooks into scikit-learn, XGBoost and LightGBM, for the estimators that a program wraps."""
