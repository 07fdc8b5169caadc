"""`python -m artifact` is the same program as `artifact`."""

from artifact.cli import main

if __name__ == "__main__":
    main()
