"""`python -m remuda.cli`, for where the script is not on the path."""

from remuda.cli import main

if __name__ == "__main__":
    main()
