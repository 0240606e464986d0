"""Tests of `aerogel.audit`."""
