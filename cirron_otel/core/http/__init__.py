"""The HTTP client of the package, and the settings that it reads from the environment."""
