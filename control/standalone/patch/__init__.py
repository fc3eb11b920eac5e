"""Patches of plain JSON objects: JSON patch, merge patch, strategic merge patch, server-side apply.

Each kind of patch is a pure function in its own module; `patches` converts their errors to `StatusError`s.
`schema` is a `control.standalone.schema.walk.Schema`, or None when the kind has no schema.
"""
