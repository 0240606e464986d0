"""`python -m aerogel`: the same as the command `aerogel`."""

from aerogel.cli import main

if __name__ == "__main__":
    main()
