"""Other libraries' names for what Aerogel does, so that their scripts run by changing an import line."""
