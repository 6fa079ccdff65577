"""SQL storage: the platform's tables in SQLite or PostgreSQL (docs/storage.md)."""
