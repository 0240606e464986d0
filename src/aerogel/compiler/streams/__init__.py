"""What is large inside, and small where it begins and ends: made block by block."""
