"""What is known of a program's values before it runs: that one is an identity, a counter, linear in another."""
