"""Docker mode of koord-runtime-proxy: HTTP between dockershim and dockerd, with hooks in between (spec 08 §12).

`http1` knows where requests and answers end, `link` passes them on over its two `side`s, `calls` says which are
`held`, `exchanges` what happens around those, `infos`, `bodies` and `names` translate Docker's words into hooks' and
back, `api` and `recover` read what dockerd runs, `server` listens.
"""
