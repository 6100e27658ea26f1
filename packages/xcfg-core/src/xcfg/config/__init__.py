"""Strict JSON to `schema.experiment.Experiment`: everything about a file that needs no knob and no engine."""

from __future__ import annotations

from xcfg.config.load import load_experiment, parse_experiment

__all__ = ["load_experiment", "parse_experiment"]
