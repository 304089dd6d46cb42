"""REST, described by OpenAPI: every operation for anything that speaks HTTP. No thread waits for a claim."""
