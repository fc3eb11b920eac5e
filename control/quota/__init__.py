"""ElasticQuotas as manager and scheduler understand them: the tree, which quota a pod belongs to, and what a quota may
use (spec 06 §5). Pure.

`info` reads an object, `podquota` finds the quota of a pod. `runtime` distributes a level, `tree` sums up requests and
use, `forest` keeps all trees with their pods, `admission` decides about a pod.
"""
