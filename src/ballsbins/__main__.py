"""`python -m ballsbins` is the command `ballsbins`."""

from ballsbins.cli import main

main()
