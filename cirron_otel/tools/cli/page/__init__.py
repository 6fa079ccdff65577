"""The report as one HTML file: no script, no request to anywhere, and nothing in it is trusted."""
