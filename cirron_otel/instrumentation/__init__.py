"""Hooks into frameworks: they are imported only where a program uses them."""
