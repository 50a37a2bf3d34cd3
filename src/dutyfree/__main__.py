"""`python -m dutyfree` is the command `dutyfree`."""

from dutyfree.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
