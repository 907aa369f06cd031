"""`python -m regard`: the same as `regard`, but slower to start, since Python imports torch first."""

from regard.cli import main

if __name__ == "__main__":
    main()
