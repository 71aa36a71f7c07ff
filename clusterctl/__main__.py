"""`python -m clusterctl`, for when another program owns the name on PATH."""

from clusterctl.cli import main

if __name__ == "__main__":
    main()
