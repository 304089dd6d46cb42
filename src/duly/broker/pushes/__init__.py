"""What brokers run of pushes: which of them are whose (keeper.py), and the runners that deliver."""
