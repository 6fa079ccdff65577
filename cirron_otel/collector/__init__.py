"""The collector wing: `receiver` accepts requests, `service` stores and forwards them."""
