"""The command line, as ``clustersim`` is."""

from scenarios.command import main

if __name__ == "__main__":
    main()
