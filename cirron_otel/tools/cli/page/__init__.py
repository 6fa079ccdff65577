"""The report as one HTML file without scripts or network requests; all recorded text is escaped."""
