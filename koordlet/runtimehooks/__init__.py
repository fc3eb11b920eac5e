"""What pods and containers get by their class (spec 03 §4), as strategies over the node's picture.

Hooks at container start come with the protocols that call them; running pods converge here.
"""
