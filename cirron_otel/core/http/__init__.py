"""The HTTP client of the package, and the settings that it takes from the environment."""
