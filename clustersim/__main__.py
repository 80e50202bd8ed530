"""The command line, as ``clustersim`` is."""

from clustersim.scenarios.commands.command_line import main

if __name__ == "__main__":
    main()
