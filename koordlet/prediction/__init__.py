"""What will be used: peaks of pods, priority classes, node and system, learned from what they used (spec 02 §8).

    metric cache -> `training` (one p90 sample a minute for every model) -> `models` (two decayed histograms each)
    models -> `predictors` (what of Prod's requests can be lent, and Prod's peak) -> NodeMetric.status
    models <-> `checkpoints` (one file a model, so that a restart forgets nothing)

`koordlet.app.histogram` is the mathematics: all models at once, a matrix row each. `validation` holds predictions
against what came.
`service` ties these to clocks, the node's objects and Prometheus; the daemon runs its steps. Bounds: one row of
(158 + 205) float64 a model, and as many models as pods ran within the expiration time, plus seven.
"""
