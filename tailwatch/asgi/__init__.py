"""Where an ASGI app is stamped: the middleware, its routes, and what it adds to responses."""
