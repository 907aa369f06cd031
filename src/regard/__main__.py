"""`python -m regard`: the same as `regard`, after the time that Python takes to import the package."""

from regard.cli import main

if __name__ == "__main__":
    main()
