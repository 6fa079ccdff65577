"""Named verdicts on a run, by rules with thresholds; docs/verdicts.md is normative."""
