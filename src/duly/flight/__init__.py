"""Arrow Flight: the broker for the Python client, Spark and any Arrow language."""
