"""``python -m fedgeo`` is the command ``fedgeo``."""

from fedgeo.cli import main

main()
