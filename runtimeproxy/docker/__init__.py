"""Docker mode of koord-runtime-proxy: an HTTP proxy with hooks between dockershim and dockerd (spec 08 §12).

`server` listens. `link` forwards requests and responses over its two `side`s; `http1` finds where they end, `selector`
chooses which requests are held, and `handlers` call the hooks for these. `infos`, `bodies` and `names` translate
between Docker's and the hooks' terms; `api` and `recover` read dockerd's containers.
"""
