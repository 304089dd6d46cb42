"""What travels between a client and a broker over Flight: commands, answers, batches, errors."""
