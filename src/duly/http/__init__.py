"""REST, described by OpenAPI: the broker for anything that speaks HTTP."""
