"""Findings: causes of lost time, and failures, each with its price."""
