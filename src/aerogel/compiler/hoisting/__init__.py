"""What stands in a loop and runs outside it instead, once or for all steps at once."""
