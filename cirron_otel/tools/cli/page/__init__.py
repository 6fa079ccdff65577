"""The report as one HTML file, without scripts or requests; no recorded text is trusted."""
