"""What stands around a loop and runs in its steps instead, so that nothing is stacked in between."""
