"""Importers: readers of recordings that other tools made, one folder for each format."""
