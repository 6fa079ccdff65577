"""The document of a run: built once from its figures and findings, rendered as text and as page."""
