"""The plugins of the descheduler; `registry` lists them."""
