"""What koordlet is made of, a part a file: each takes the `Context`, makes its objects, adds what must run.

`daemon` calls them in order. Options are read here and nowhere below.
"""
