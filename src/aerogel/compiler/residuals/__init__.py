"""What a forward part leaves for the backward part to read: stored, or computed again."""
