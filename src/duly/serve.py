"""serve: the composition root of a broker. It opens the store, puts a broker on it, and both surfaces before that."""
