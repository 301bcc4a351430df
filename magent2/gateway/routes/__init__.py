"""The routes, one module per thing that they are about."""
