"""What a mask or a selector leaves: only that is computed."""
