"""Values of which only a part is read: that part alone is made."""
