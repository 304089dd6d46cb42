"""What brokers run so that a group's messages go somewhere by themselves."""
