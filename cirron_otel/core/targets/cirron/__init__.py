"""The Cirron platform as a target, over HTTP (docs/cirron-http.md)."""
