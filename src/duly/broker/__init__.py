"""A broker: one store served to many, with a door, a room to wait in, and an orderly end."""
