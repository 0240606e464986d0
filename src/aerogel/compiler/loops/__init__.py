"""Loops that walk along an array, and other steps that can be had for less."""
