"""Predicts peak use of pods, priority classes, node and system from their past use (spec 02 §8).

    metric cache -> `training` (one p90 sample per minute for every model) -> `models` (two decayed histograms each)
    models -> `predictors` (how much of Prod's requests can be overcommitted, and Prod's peak) -> NodeMetric.status
    models <-> `checkpoints` (one file per model, so that a restart loses nothing)

`koordlet.app.histogram` has the mathematics: all models together, one matrix row each. `validation` compares
predictions with the use that followed. `service` connects these to clocks, the node's objects and Prometheus; the
daemon runs its steps. Bounds: one row of (158 + 205) float64 per model, and as many models as pods ran within the
expiration time, plus seven.
"""
